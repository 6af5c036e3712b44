"""The time by which messages are deleted.

`deletion_clock` is the rule, pure: it trusts no single clock, but two that agree. `timekeeper`
reads the clocks and keeps the known time in the metadata.

Promises: a wrong clock deletes nothing; deletions by age come late, never early.

After a crash the time counts on from the record.

Relies on the metadata store's own clock.

Others use `DeletionTime`, `DeletionClock` and `Timekeeper`.
"""
