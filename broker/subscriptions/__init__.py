"""Subscriptions of a partition: which consumer gets which message, and which messages are acked.

`subscriptions` holds a partition's set, `subscription` drives each one, `dispatch` decides.

Promises: delivery at least once; an ack that returned is durable, in any order of acks. After a
crash leases are void, so unacked messages are delivered again; a planned hand-over keeps leases.

Relies on `state` and `log`.

Others use `SubscriptionSet` and `Subscription`.
"""
