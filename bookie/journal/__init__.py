"""The journal: what it reports durable survives a crash, in order.

`format` defines the bytes. `journal` gathers waiting appends into one write and one sync (group
commit), lets connections take turns, and assigns ledgers to journals. `thread` makes the writes and
syncs. `reader` reads a journal back and splits its blocks into batches and meta records. `mark`,
the last-log mark, says up to where everything is also in its final place.

Promises: callbacks come after the sync, in the order of the appends of a lane. A failed sync is
never tried again. After a crash the last block may be torn, and is cut; anything else that cannot
be read is an error, and never skipped silently. Relies on `disk`. Others use `Journals`, `Journal`,
`Mark`, `Position`, `Meta` and `MetaOp`.
"""
