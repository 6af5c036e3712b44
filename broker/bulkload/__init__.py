"""Bulk loads: ledgers written beforehand join many partitions at once. Spark's sink commits so.

`rules` are the pure rules of a batch's record, with their reasons; `checks` looks whether the parts
are what is said of them; `driver` commits, aborts, and finishes what others have left.

Promises: a batch is in all its partitions or in none, once, however often it is asked for. Nothing
is kept here: after a crash the records say what is to be done, and any broker does it. Relies on
partitions to take in their part (`partition/part_loader.py`) and on the metadata store. Others use
`BulkLoads` and `rules`.
"""
