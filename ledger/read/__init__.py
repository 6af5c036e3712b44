"""Read a ledger, closed or open, never above its last confirmed entry.

`reader` is the driver; `speculative_read` asks the next replica early when the first is slow;
`entry_verifier` checks an entry's bytes; `entry_source` is the base of all readers, also of
offloaded ledgers; `open_batch` unpacks batches without blocking the event loop; `time_search` finds
the first record from a time on; `continuity` checks that no message is missing between batches;
`doubts` asks bookies to compare doubtful copies.

Promises: a returned entry was checked, is confirmed, and is the same for every reader. An entry
that no replica can return is an error, never the end of the ledger. Relies on `bookies`. A crash
loses nothing. Others use `LedgerReader`, `Continuity`, `opening` and `offset_as_new_as`.
"""
