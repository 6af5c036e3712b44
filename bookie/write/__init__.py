"""From the journal to the final place: write cache, flush, checkpoint.

Only `checkpoint` orders entry log, ledger state, mark, index and the removal of old journals.
Promises: an entry is in the cache only when it is durable (a deferred one: when it is written), so
a power failure loses no entry that readers have seen, except deferred ones. An entry never changes.
After a crash the journal fills the cache again, from the mark on.
Relies on `journal`, `entrylog`, `index` and `ledgers`.
Others use `WriteCache`, `Checkpointer`, `Flushing` and `DuplicateAdds`.
"""
