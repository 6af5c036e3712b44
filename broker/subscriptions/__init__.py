"""Subscriptions of a partition: which consumer gets which message, and which are acked.

`subscriptions` is the set of a partition, `subscription` drives each: receive, acknowledge, seek.
`dispatch` decides which consumer gets a message, and when a lease ends, pure.

Promises: delivery at least once. A message whose lease ended is delivered again; an ack that
returned is durable, in any order of acks. After a crash leases are void, so unacked messages are
delivered again; a planned hand-over keeps leases. Relies on `state` and `log`. Others use
`SubscriptionSet` and `Subscription`.
"""
