"""A partition's messages, as a sequence of ledgers.

`record` keeps the partition's record, and is the only way to change it. `ledger_list` has the
partition's ledgers and their contents, `retention` decides which of them go, both pure.
`orphan_ledgers` decides which ledgers no record will name, and counts the partitions that share a
ledger, pure; `ledger_references` drives these counts. `reader` reads batches, finds them through
`entry_index`, and measures ledgers. `cache` keeps the newest batches; `compaction_rules` has the
rules of a broker's own compaction and of reading a compacted view, pure; `open_batches` unpacks
batches into single messages.

Promises: offsets have no gaps; a batch is accepted only if it follows the batch before it. A change
of the record applies to exactly the known record, or raises `OwnershipLost`. A crash loses only
caches. Relies on `ledger`. Others use `PartitionRecordKeeper`, `OwnershipLost`, `LogReader`,
`LedgerList`, `Contents` and `TailCache`.
"""
