"""The journal: what it reports durable survives a crash, in order.

`format` has the bytes. `journal` gathers what waits into one write and one sync (group commit),
lets connections take turns, and knows which of several journals is a ledger's; `thread` is where
its writes and syncs are made. `reader` reads one back, and takes its blocks apart into batches and
meta records; `mark`, the last-log mark, says up to where everything is also in its final place.

Promises: callbacks come after the sync, in the order of the appends of one lane. A failed sync is
never tried again. On a crash the last block may be torn and is cut; anything else that cannot be
read is an error, and never skipped in silence. Relies on `disk`. Others use `Journals`, `Journal`,
`Mark`, `Position`, `Meta` and `MetaOp`.
"""
