"""The index: which extent of which entry log holds an entry.

`log_slice` says what the index still points to.
Promises: the newest copy of an entry is found with a single seek.
After a crash it is as old as its last flush, and is completed from the logs.
It is derived: `startup/index_rebuild.py` can rebuild it.
Relies on `entrylog`.
Others use `LedgerIndex`, `RocksIndex`, `IndexedExtent` and `live_parts`.
"""
