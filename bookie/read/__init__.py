"""Reading entries: from the caches, or cold from the entry logs.

`reading` is the way of a read: write cache, read cache, then the logs. `reads` are the cold reads,
on threads of their own, one read for several who want the same run. `cache` keeps runs that were
read, `read_ahead` says how much to fetch for whom, `stats` counts.

Promises: reads never wait for writes. The answer is the entry, or that there is none, or that
nobody here can know; what cannot be read is never reported as absent. Relies on `index`, `entrylog`
and the write cache. Nothing here outlives a crash. Others use `Reading`, `ColdReads` and
`ReadCache`.
"""
