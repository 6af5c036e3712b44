"""Garbage collection: what was deleted in metadata disappears from this bookie's disks.

`collector` is the round. `deletion_proof` proves that a ledger's record is gone, twice and in two
ways; `rules` decides, purely, what becomes of each log and when a deleted ledger may go;
`log_metadata` counts what lives in each log; `compaction` empties one log and removes it; `status`
tells people about it.

Promises: nothing that lives is removed. A log goes only after all of it was read back and whatever
lives in it was copied, through the checkpoint's order: a crash at any step leaves both or the newer
one. Relies on `write/checkpoint.py` for that order, and on the metadata store's listing. Others use
`Collector`, `Compactor`, `CollectorStatus` and `DeletionProof`.
"""
