"""The live brokers, the owners of partitions, and the topics.

`registry` lists the live brokers, `membership` decides which broker should own a partition,
`ownership` which broker does, `balance` moves partitions. `topics` keeps namespaces, topics and
subscriptions, `watched_record` keeps a record fresh by its watch, `deletion` deletes a topic,
`orphan_ledgers` the ledgers that no record names. `background_tasks` does work for many partitions,
`in_use` refuses recoveries of ledgers that live brokers write.

Promises: at most one broker gets acks for a partition; a topic that was deleted and created again
is a different topic. A broker that crashes loses its session, and other brokers claim its
partitions. Relies on sessions and compare-and-set of `metadata`, and on fencing. Others use
`OwnershipManager`, `BrokerRegistry`, `Topics`, `Balance` and `Deletions`.
"""
