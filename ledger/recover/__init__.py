"""Close a ledger that another process wrote.

`recovery_state` is the pure state machine of the six steps, `recovery` drives it over real bookies
and the real record, `events` are the steps as an observer gets them.

Promises: the ledger ends at or after every entry that was ever acknowledged, at the same entry for
any number of concurrent recoveries; after the fence its writer gets no acknowledgement. A crash
leaves the record IN_RECOVERY and harmless extra copies, and the next recovery starts again. Relies
on the ensemble rules of `write`, and on separate connections. Others use `Recovery` and
`RecoveryEvent`.
"""
