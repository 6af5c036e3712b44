"""Reading entries: from the caches, or cold from the entry logs.

`path` is the way of a read: write cache, read cache, then the logs. `scheduler` says which read is
next: connections take turns on the loop, ledgers at the threads that do cold reads, and several who
want the same have it read once. `cache` keeps what was read, `read_ahead` says how much to fetch
for whom.

Promises: reads never wait for writes. The answer is the entry, or that there is none, or that
nobody here can know; what cannot be read is never reported as absent. Relies on `index`, `entrylog`
and the write cache. Nothing here outlives a crash. Others use `ReadPath`, `ReadScheduler`,
`ColdReads` and `ReadCache`.
"""
