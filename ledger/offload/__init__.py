"""Ledgers as objects in an object store, and how they are read from there.

`format` writes, reads and checks a ledger as a Parquet object. `offloaded` reads it with the
interface of a closed ledger, `object_store` opens files by URL.

Promises: the same entries are returned, checked by the same digests; damage is an error that names
the object and the entry, never an absence. A crash may leave half an object, which no record names.
Relies on pyarrow. Others use `open_offloaded`, `OffloadedReader` and `ObjectWriter`.
"""
