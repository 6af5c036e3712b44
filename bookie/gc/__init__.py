"""Garbage collection: remove ledgers from this bookie's disks that metadata has deleted.

`collector` runs the rounds. `deletion_proof` proves that a ledger's record is gone, twice and in
two ways. `rules` decides, purely, what happens to each log and when a deleted ledger may go.
`log_metadata` counts the live entries of each log, `compaction` copies them and removes the log,
and `status` reports to operators.

Promises: no live entry is removed. A log is removed only after all of it was read back and its live
entries were copied, in the checkpoint's order. So a crash at any step leaves both copies, or the
new copy. Relies on `write/checkpoint.py` for that order, and on the metadata store's listing.
Others use `Collector`, `Compactor`, `CollectorStatus` and `DeletionProof`.
"""
