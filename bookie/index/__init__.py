"""The index: which extent of which entry log holds an entry.

`index` keeps it in RocksDB, a record for each extent of a log, and can read the index of a stopped
bookie without changing it. `log_slice` reads a sealed log back and says which entries of it the
index still points to.

Promises: the newest copy of an entry is found with a single seek; an extent that overlaps older
extents cuts them. The index is derived, never the only place of anything: after a crash it is as
old as its last flush, the journal mark says how old, and `startup/index_rebuild.py` rebuilds it
from the logs. Relies on `entrylog`. Others use `LedgerIndex`, `RocksIndex`, `IndexedExtent` and
`live_parts`.
"""
