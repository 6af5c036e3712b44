"""Startup: from the files on the disks to a storage that serves.

`opening` has the order, `index_rebuild` makes an index from the logs, `repair` keeps what is good
after an accepted loss.
Promises: nothing is served before everything is replayed. Missing or damaged files refuse the
start, by name, unless the loss was accepted.
After a crash on the way the next start completes it.
Relies on `journal`, `entrylog`, `index`, `ledgers`, `write`.
Others use `open_files`, `replay` and `rebuild_index`.
"""
