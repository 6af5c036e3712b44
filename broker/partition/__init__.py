"""A partition that this broker owns: opening, publishing, roll-over, maintenance.

`partition` is the whole, with `PartitionOpening`. `opening` takes it over from the last owner,
`publisher` assigns offsets and answers, `message_batcher` joins single messages into batches, `log`
reads, `compacted` reads through the compacted view, `rollover` begins the next ledger,
`part_loader` inserts bulk loads, `maintenance` trims and saves, `context` has the parts that all
partitions of a broker share.

Promises: an answered publish is confirmed, in a ledger that the record names; messages are in the
order of offsets. A replaced owner cannot add. After a crash the next owner recovers the last
ledger, replays the state ledger and reads the last batch headers. Relies on `log`, `state` and
`subscriptions`. Others use `Partition`, `PartitionOpening` and `PartitionContext`.
"""
