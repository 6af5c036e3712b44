"""Re-replication: each bookie fetches the copies that it lacks.

`keeper` walks over the ledgers' records for one bookie; `copies` computes (pure) which entries it
must hold and which positions of lost bookies it takes over; `copying` copies a range of entries,
byte for byte; `comparing` compares doubtful copies; `forgetting` removes a bookie that is gone for
good from the cluster.

Promises: a record names a new holder only after that bookie durably has the entries. There is
neither a work list nor a lock: after a crash the next walk finds what is missing. Relies on the
ledger client. Others use `CopyKeeper`, `KeeperOptions`, `KeeperStatus` and `forget_bookie`.
"""
