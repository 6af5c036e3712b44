"""The seam to the machine: files, folders, threads, and the known damage and losses.

`files` is the only module of the bookie that opens a file: it has the real `Disk` and `File`, their
errors, and the threads that wait for them. `damage` is the registry of findings, with the losses
that a start found.

Promises: a call that returned from `datasync` or `sync_directory` is durable; a failed sync is
final and raises `SyncFailed`; a full disk is `DiskFull`, never a torn success. Relies only on the
operating system, so the simulator replaces the disk and runs the other rooms unchanged. Findings
are in memory: after a crash they are found again. Others use `Disk`, `File`, the errors,
`DamageRegistry` and `Loss`.
"""
