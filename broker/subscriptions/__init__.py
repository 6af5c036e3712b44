"""Subscriptions of one partition: who gets which message, and what is acked.

`subscriptions` is the set of them, `subscription` drives one: receive, acknowledge, seek.
`dispatch` says, purely, which message goes to whom, and when a lease ends.

Promises: at least once. A message whose lease ended is given again; an ack that returned is
durable, in whatever order acks come.
After a crash leases are forgotten, so unacked messages come again. Relies on `state` and `log`.
Others use `SubscriptionSet` and `Subscription`.
"""
