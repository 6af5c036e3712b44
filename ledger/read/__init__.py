"""Reading a ledger, closed or open, never above its last confirmed entry.

`reader` is the driver, `speculative_read` asks the next replica early when the first is slow,
`entry_verifier` makes a checked entry of bytes, `entry_source` is what all readers do alike, also
those of offloaded ledgers. `open_batch` opens batches without holding the loop up, `time_search`
finds where a time begins, `continuity` sees that nothing is missing between batches.

Promises: an entry that is returned was checked, is confirmed, and is the same for every reader.
What no replica can give is an error and not an end. Relies on `bookies`. A crash loses nothing.
Others use `LedgerReader`, `Continuity`, `opening` and `offset_as_new_as`.
"""
