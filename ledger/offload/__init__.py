"""Ledgers as objects in an object store, and read from there.

`format` has a ledger as a Parquet object: written, read back and checked. `offloaded` reads it as a
closed ledger is read, `object_store` finds the place.

Promises: the same entries come out, checked by the same digests; damage is an error that names the
object and the entry, never an absence. On a crash half an object may be left, which no record
names. Relies on pyarrow. Others use `open_offloaded`, `OffloadedReader` and `ObjectWriter`.
"""
