"""Reads of entries: from the caches, or from the entry logs.

`path` looks into the write cache, the read cache, then the logs. `scheduler` chooses the next read:
connections take turns on the loop, ledgers at the threads for cold reads, and readers of the same
entry share a read. `cache` keeps entries that were read, `read_ahead` decides how much to fetch for
a reader.

Promises: reads never wait for writes. The answer is the entry, or that there is none, or that this
bookie cannot know; an entry that cannot be read is never reported as absent. Relies on `index`,
`entrylog` and the write cache. On a crash only caches are lost. Others use `ReadPath`,
`ReadScheduler`, `ColdReads` and `ReadCache`.
"""
