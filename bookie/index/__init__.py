"""The index: which extent of which entry log holds an entry.

`index` keeps it in RocksDB, one record for each extent of a log, and has a look at the index of a
stopped bookie without touching it. `log_slice` reads a sealed log back and says what of it the
index still points to.

Promises: the newest copy of an entry is found with one seek; an extent that overlaps older ones
cuts them. Derived, so never the only place of anything: after a crash it is as old as its last
flush, the journal mark says how old, and `startup/index_rebuild.py` makes it anew from the logs.
Relies on `entrylog`. Others use `LedgerIndex`, `RocksIndex`, `IndexedExtent` and `live_parts`.
"""
