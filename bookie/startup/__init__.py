"""Startup: from the files on the disks to a storage that serves.

`opening` has the order: mark, ledger states, logs cut, index, journals replayed, new journal files.
`index_rebuild` makes an index from the logs. `repair` reads mark and states, and keeps what is good
when the operator has accepted a loss (data-loss repair).

Promises: nothing is served before everything is replayed. After a crash on the way the next start
completes it, because each step leaves what the previous step needs. Missing or damaged files refuse
the start, by name, unless the loss was accepted; then limbo is durable first. Relies on all rooms
that write: `journal`, `entrylog`, `index`, `ledgers`, `write`. Others use `open_files`, `replay`
and `rebuild_index`.
"""
