"""Reading entries: from the caches, or cold from the entry logs.

`path` finds an entry in the write cache, the read cache, or the logs, in this order. `cold_reads`
reads the logs: ledgers take turns at its threads, and an entry that several callers want is read
once. `cache` keeps what was read. `read_ahead` decides how much to fetch for each reader.

Promises: reads never wait for writes. The answer is the entry, or "there is none", or "this bookie
cannot know"; an entry that cannot be read is never reported as absent. Relies on `index`,
`entrylog` and the write cache. Nothing here outlives a crash. Others use `ReadPath`, `ColdReads`
and `ReadCache`.
"""
