"""Ledgers as objects in an object store, and how they are read from there.

`format` writes, reads and checks a Parquet object; `object_store` opens files by URL.
Promises: the same entries are returned, checked by the same digests; damage is an error, never an
absence.
A crash may leave half an object, which no record names.
Relies on pyarrow.
Others use `open_offloaded`, `OffloadedReader` and `ObjectWriter`.
"""
