"""From the journal to the final place: write cache, flush, checkpoint.

`cache` is the write cache, in two memtables: one takes what is durable, one is being flushed.
`flushing` says when; `checkpoint` is the one place that orders entry log, ledger state, mark, index
and the end of old journals. `repeats` compares an add with what is here under its id already.

Promises: an entry is in the cache only when it is durable, so no reader sees what a power failure
takes back; an entry never changes. On a crash both are gone and the journal since the mark fills
them again. Relies on `journal`, `entrylog`, `index` and `ledgers`. Others use `WriteCache`,
`Checkpointer`, `Flushing` and `Repeats`.
"""
