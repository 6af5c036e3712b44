"""Bulk loads: ledgers written beforehand join many partitions at once. Spark's sink commits so.

`rules` are pure; `driver` verifies, commits, aborts, and completes batches.

Promises: a batch is in all its partitions or in none, once, however often it is committed.

Nothing is in memory: after a crash any broker does what the records say is left.

Relies on partitions to insert their parts (`partition/part_loader.py`) and on the metadata store.

Others use `BulkLoads` and `rules`.
"""
