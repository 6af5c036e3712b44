"""The seam to the machine: files, folders, threads, and what is known to be damaged or lost.

`files` is the only module of the bookie that opens a file: `Disk` and `File`, the real ones, their
errors, and the way to the threads that wait for them. `damage` is the registry of findings, and
has what a start found gone.

Promises: a call that returned from `datasync` or `sync_directory` is durable; a failed sync is
final and raises `SyncFailed`; a full disk is `DiskFull`, never a torn success. Relies on the
operating system alone, so the simulator puts its own disk here and runs the rest as it is. A
finding is in memory: after a crash it is found again. Others use `Disk`, `File`, the errors,
`DamageRegistry` and `Loss`.
"""
