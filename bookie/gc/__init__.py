"""Garbage collection: remove ledgers from this bookie's disks that metadata has deleted.

`collector` runs the rounds, `deletion_proof` proves, `rules` decides, `compaction` copies.
Promises: no live entry is removed. A log is removed only after all of it was read back and its live
entries were copied.
A crash leaves both copies, or the new copy.
Relies on `write/checkpoint.py` for that order.
Others use `Collector`, `Compactor`, `CollectorStatus` and `DeletionProof`.
"""
