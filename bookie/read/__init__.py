"""Reading entries: from the caches, or cold from the entry logs.

`path` is the way of a read: write cache, read cache, then the logs. `cold_reads` reads the logs:
ledgers take turns at its threads, and an entry that several callers want is read once. `cache`
keeps what was read, `read_ahead` says how much to fetch for which reader.

Promises: reads never wait for writes. The answer is the entry, or that there is none, or that this
bookie cannot know; what cannot be read is never reported as absent. Relies on `index`, `entrylog`
and the write cache. Nothing here outlives a crash. Others use `ReadPath`, `ColdReads` and
`ReadCache`.
"""
