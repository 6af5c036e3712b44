"""Entry logs: where entries stay, in extents of entries of a ledger with a shared checksum.

`log` appends and reads extents, `walk` goes through a log past damage.
Promises: a log is written by a single life of the process. A record is read whole and checked, or
`DamagedRead` names the place.
Relies on `disk`.
After a crash the next start cuts a torn end after the journal mark (`startup`).
Others use `EntryLogs`, `Location`, `Extent` and the format's constants.
"""
