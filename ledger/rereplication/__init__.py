"""Re-replication: each bookie fetches the copies that it lacks.

`keeper` walks over the ledgers' records, `copies` decides, `copying` copies.
Promises: a record names a new holder only after that bookie durably has the entries.
After a crash the next walk finds what is missing: there is no work list.
Relies on the ledger client.
Others use `CopyKeeper`, `KeeperOptions`, `KeeperStatus` and `forget_bookie`.
"""
