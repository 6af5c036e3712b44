"""A partition that this broker owns: opening, publishing, roll-over, maintenance.

Promises: an answered publish is confirmed, in a ledger that the record names; messages are in the
order of offsets. A replaced owner cannot add.

After a crash the next owner recovers the last ledger, replays the state ledger and reads the last
batch headers.

Relies on `log`, `state` and `subscriptions`.

Others use `Partition`, `PartitionOpening` and `PartitionContext`.
"""
