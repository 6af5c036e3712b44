"""The time by which messages are deleted.

`deletion_clock` is the rule, pure: one clock is not believed, two witnesses are. `timekeeper` reads
the clocks and keeps what is known in the metadata.

Promises: a clock that is set wrong deletes nothing; while the witnesses disagree there is no time,
and whoever deletes by age waits. After a crash the record tells how long the cluster has been.
Relies on the metadata store's own clock. Others use `DeletionTime`, `DeletionClock` and
`Timekeeper`.
"""
