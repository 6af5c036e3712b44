"""Who is there, who owns what, and which topics exist.

`registry` has the live brokers, `preference` who should own what, `ownership` who does,
`balance` hands partitions on. `topics` knows namespaces, topics and subscriptions, `watched_record`
keeps a record fresh by its watch, `deletion` deletes a topic whole, `leftovers` the ledgers that
nobody names any more. `chores` does work for many partitions, `in_use` guards forced recoveries.

Promises: a partition has at most one owner that can be acknowledged; a name that was deleted and
made again is another topic. A broker that crashes loses its session, and its partitions are claimed
by others. Relies on sessions and compare-and-set of `metadata`, and on fencing. Others use
`OwnershipManager`, `BrokerRegistry`, `Topics`, `Balance` and `Deletions`.
"""
