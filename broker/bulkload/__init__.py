"""Bulk loads: ledgers written beforehand join many partitions at once. Spark's sink commits so.

`rules` are the pure rules of a bulk load's record; `driver` verifies the parts of a batch before
its commit, commits, aborts, and completes unfinished batches.

Promises: a batch is in all its partitions or in none, once, however often it is committed. Nothing
is kept in memory: after a crash the records say what is left to do, and any broker does it. Relies
on partitions to insert their parts (`partition/part_loader.py`) and on the metadata store. Others
use `BulkLoads` and `rules`.
"""
