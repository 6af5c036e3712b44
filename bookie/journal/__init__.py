"""The journal: what it reports durable survives a crash, in order.

`journal` makes group commits, `reader` reads a journal back, `mark` says up to where everything is
also in its final place.
Promises: an append is reported after the sync (a deferred append after the write), and the appends
of a lane in their order. A failed sync is never tried again.
After a crash the torn last block is cut; anything else that cannot be read is an error.
Relies on `disk`.
Others use `Journals`, `Journal`, `Mark`, `Position`, `Meta` and `MetaOp`.
"""
