"""The live brokers, the owners of partitions, and the topics.

`registry` lists the live brokers, `preference` decides which broker should own a partition,
`ownership` which broker does, `balance` moves partitions. `topics` knows namespaces, topics and
subscriptions, `watched_record` keeps a record fresh by its watch, `deletion` deletes a whole topic,
`leftovers` the ledgers that no record names. `chores` does work for many partitions, `in_use`
guards forced recoveries.

Promises: a partition has at most one owner that can be acknowledged; a topic that was deleted and
created again is a different topic. A broker that crashes loses its session, and other brokers claim
its partitions. Relies on sessions and compare-and-set of `metadata`, and on fencing. Others use
`OwnershipManager`, `BrokerRegistry`, `Topics`, `Balance` and `Deletions`.
"""
