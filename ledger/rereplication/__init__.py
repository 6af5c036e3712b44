"""Re-replication: each bookie fetches the copies that it lacks.

`keeper` walks over the ledgers' records for one bookie; `copies` says, purely, which entries it is
to hold and which of a lost bookie's are its to take; `copying` copies one stretch, byte for byte;
`forgetting` takes a bookie that is gone out of the cluster.

Promises: a record names a new holder only after that has the entries, durably. There is no list of
work and no lock: after a crash the next walk finds what is missing. Relies on the ledger client.
Others use `CopyKeeper`, `KeeperOptions`, `KeeperStatus` and `forget_bookie`.
"""
