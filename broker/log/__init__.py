"""A partition's messages, as a sequence of ledgers.

`record` is the only way to change the partition's record. `ledger_list`, `retention`,
`orphan_ledgers` and `compaction_rules` decide, all pure; `reader` reads batches, `cache` keeps the
newest, `open_batches` unpacks them.

Promises: offsets have no gaps; a batch is accepted only if it follows the batch before it. A change
of the record applies to exactly the known record, or raises `OwnershipLost`.

A crash loses only caches.

Relies on `ledger`.

Others use `PartitionRecordKeeper`, `OwnershipLost`, `LogReader`, `LedgerList`, `Contents` and
`TailCache`.
"""
