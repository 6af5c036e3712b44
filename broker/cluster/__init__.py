"""The live brokers, the owners of partitions, and the topics.

`registry` lists the live brokers, `membership` says which broker should own a partition,
`ownership` which broker does, `balance` moves partitions; `topics` keeps the metadata's records.

Promises: at most one broker gets acks for a partition; a topic that was deleted and created again
is a different topic.

After a crash the broker's session ends, and others claim its partitions.

Relies on sessions and compare-and-set of `metadata`, and on fencing.

Others use `OwnershipManager`, `BrokerRegistry`, `Topics`, `Balance` and `Deletions`.
"""
