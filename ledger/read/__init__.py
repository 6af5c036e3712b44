"""Read a ledger, closed or open, never above its last confirmed entry.

`reader` is the driver, `entry_source` the base of all readers.
Promises: a returned entry was checked, is confirmed, and is the same for every reader. An entry
that no replica can return is an error, never the end.
Relies on `bookies`.
A crash loses nothing.
Others use `LedgerReader`, `Continuity`, `opening` and `offset_as_new_as`.
"""
