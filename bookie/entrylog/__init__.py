"""Entry logs: where entries stay, in extents: entries of one ledger under one checksum.

`format` has the bytes. `log` appends extents, reads one back, and ends a log, `walk` goes through a
log from its first byte to its last and on behind damage, `record_check` judges one record.

Promises: a log is written by one life of the process only, in order; a record is read whole and
checked, or `DamagedRead` names the place. Relies on `disk`. On a crash the log may end in a torn
record; a start cuts it where the journal mark vouches for it (`startup`). Others use `EntryLogs`,
`Location`, `Extent` and the constants of the format.
"""
