"""Entry logs: where entries stay, in extents of entries of a ledger with a shared checksum.

`format` defines the bytes. `log` appends extents, reads an extent back, and ends a log. `walk` goes
through a log from its first byte to its last, past damage. `record_check` checks a single record.

Promises: a log is written by a single life of the process, in order. A record is read whole and
checked, or `DamagedRead` names the place. Relies on `disk`. After a crash the log may end in a torn
record; the next start cuts the log after the journal mark (`startup`). Others use `EntryLogs`,
`Location`, `Extent` and the constants of the format.
"""
