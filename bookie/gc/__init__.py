"""Garbage collection: remove ledgers from this bookie's disks that metadata has deleted.

`collector` is the round. `deletion_proof` proves that a ledger's record is gone, twice and in two
ways; `rules` decides, purely, what becomes of each log and when a deleted ledger may go;
`log_metadata` counts live entries in each log; `compaction` copies these and removes the log;
`status` reports to operators.

Promises: no live entry is removed. A log is removed only after all of it was read back and its live
entries were copied, in the checkpoint's order: a crash at any step leaves both copies or the new
copy. Relies on `write/checkpoint.py` for that order, and on the metadata store's listing. Others
use `Collector`, `Compactor`, `CollectorStatus` and `DeletionProof`.
"""
