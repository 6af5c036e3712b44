"""From the journal to the final place: write cache, flush, checkpoint.

`cache` is the write cache, in two memtables: one takes new entries, the other is being flushed.
`flushing` decides when to flush. `checkpoint` is the only place that orders entry log, ledger
state, mark, index and the removal of old journals. `duplicate_adds` compares an add with the entry
that is already here under its id.

Promises: an entry is in the cache only when it is durable (a deferred entry: when it is written).
So a power failure loses no entry that readers have seen, except deferred ones. An entry never
changes. After a crash the journal fills the cache again, from
the mark on. Relies on `journal`, `entrylog`, `index` and `ledgers`. Others use `WriteCache`,
`Checkpointer`, `Flushing` and `DuplicateAdds`.
"""
