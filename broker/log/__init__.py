"""A partition's messages, as ledgers in a row.

`record` is the partition's record as its owner last wrote it, and the one way to change it;
`ledger_list` has its ledgers and what each contains, pure; `leftover` says which ledgers nobody
will name any more, `referrers` who has a ledger that several partitions name, and `shared_ledgers`
lets go of it. `reader` finds and reads batches through `entry_index`, and finds out what a
ledger holds; `cache` keeps the tail, `compacted_view` reads a compacted copy, `open_batches` opens
batches for those who want single messages.

Promises: offsets have no gaps, a batch is believed only where it follows the one before. A change
of the record took effect on exactly the record that was known, or `OwnershipLost`. A crash takes
caches only. Relies on `ledger`. Others use `PartitionRecordKeeper`, `OwnershipLost`, `LogReader`,
`LedgerList`, `Contents` and `TailCache`.
"""
