"""Close a ledger that another process wrote.

`recovery_state` is the pure state machine, `recovery` drives it over real bookies.
Promises: the ledger ends at or after every acknowledged entry, at the same entry for any number of
concurrent recoveries; after the fence its writer gets no acknowledgement.
A crash leaves the record IN_RECOVERY, and the next recovery starts again.
Relies on the ensemble rules of `write`, and on separate connections.
Others use `Recovery` and `RecoveryEvent`.
"""
