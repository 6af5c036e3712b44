"""A partition's messages, as a sequence of ledgers.

`record` holds the partition's record as its owner last wrote it, and is the only way to change it;
`ledger_list` has its ledgers and their contents, pure; `orphan_ledgers` finds ledgers that no
record will name, and counts the partitions that share a ledger; `ledger_references` removes a
partition from them. `reader` finds and reads batches through `entry_index`, and measures ledgers;
`cache` keeps the newest batches, `compaction` decides what a broker's own compaction keeps and
reads a compacted copy, `open_batches` unpacks batches into single messages.

Promises: offsets have no gaps; a batch is accepted only if it follows the batch before it. A change
of the record applies to exactly the known record, or raises `OwnershipLost`. A crash loses only
caches. Relies on `ledger`. Others use `PartitionRecordKeeper`, `OwnershipLost`, `LogReader`,
`LedgerList`, `Contents` and `TailCache`.
"""
