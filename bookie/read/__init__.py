"""Reading entries: from the caches, or cold from the entry logs.

`path` finds an entry, `cold_reads` reads the logs, `cache` keeps what was read.
Promises: reads never wait for writes. The answer is the entry, or "there is none", or "this bookie
cannot know"; an unreadable entry is never absent.
Relies on `index`, `entrylog` and the write cache.
Nothing here outlives a crash.
Others use `ReadPath`, `ColdReads` and `ReadCache`.
"""
