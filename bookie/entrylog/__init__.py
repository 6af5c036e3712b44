"""Entry logs: where entries stay, as runs of one ledger under one checksum.

`format` has the bytes. `log` appends runs and reads one back, `handle` keeps a file open while it
is read, `tail` writes and recognises a log's end, `walk` goes through a log from its first byte to
its last and on behind damage, `record_check` judges one record.

Promises: a log is written by one life of the process only, in order; a record is read whole and
checked, or `DamagedRead` names the place. Relies on `disk`. On a crash the log may end in a torn
record; a start cuts it where the journal mark vouches for it (`startup`). Others use `EntryLogs`,
`Location`, `LogRun` and the constants of the format.
"""
