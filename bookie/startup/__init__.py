"""From what lies on the disks to a storage that serves.

`opening` has the order: mark, ledger states, logs cut, index, journals replayed, new journal files.
`index_rebuild` makes an index from the logs. `repair` reads mark and states, and keeps what is good
when the operator has accepted a loss (data-loss repair).

Promises: nothing is served before all of it is replayed, and a crash on the way is made good by the
next start: each step leaves what the one before it can find. What is missing or damaged refuses to
start, by name, unless the loss was accepted, and then limbo is durable first. Relies on all that is
written: `journal`, `entrylog`, `index`, `ledgers`, `write`. Others use `open_files`, `replay` and
`rebuild_index`.
"""
