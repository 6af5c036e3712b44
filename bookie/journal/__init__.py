"""The journal: what it reports durable survives a crash, in order.

`format` defines the bytes. `journal` gathers waiting appends into one write and one sync (group
commit), lets connections take turns, and assigns ledgers to journals. `thread` makes the writes and
syncs. `reader` reads a journal back and splits its blocks into batches and meta records. `mark`,
the last-log mark, says up to where everything is also in its final place.

Promises: an append is reported after the sync (a deferred append after the write), and the appends
of a lane in their order. A failed sync is never tried again. After a crash the last block may be
torn, and is cut; anything else that cannot be read is an error, and never skipped silently. Relies
on `disk`. Others use `Journals`, `Journal`, `Mark`, `Position`, `Meta` and `MetaOp`.
"""
