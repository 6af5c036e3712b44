"""The seam to the machine: files, folders, threads, and the known damage and losses.

Only `files` opens files.
Promises: what was written before a `datasync` or `sync_directory` is durable; a failed sync is
final (`SyncFailed`); a full disk is `DiskFull`, never a torn success.
Relies only on the operating system.
After a crash findings are found again.
Others use `Disk`, `File`, the errors, `DamageRegistry` and `Loss`.
"""
