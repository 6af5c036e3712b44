"""One owned partition: opened, published to, rolled over, looked after.

`partition` is the whole, `PartitionOpening` there how it comes to be; `opening` takes it over from
the last owner, `publisher` assigns offsets and answers, `gathering` has single messages share
batches, `log` is what its readers see and
`compacted` the compacted part of it, `rollover` begins the next ledger, `part_loader` takes in bulk
loads, `maintenance` trims and saves, `context` is what all partitions of a broker share.

Promises: an answered publish is confirmed and in a ledger that the record names; order is the order
of offsets. An owner that was replaced cannot add. On a crash the next owner recovers the last
ledger, replays the state ledger and reads the last batch headers. Relies on `log`, `state` and
`subscriptions`. Others use `Partition`, `PartitionOpening` and
`PartitionContext`.
"""
