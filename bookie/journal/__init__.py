"""The journal: what it reports durable survives a crash, in order.

`format` has the bytes. `writer` gathers what waits into one write and one sync (group commit),
`queue` lets connections take turns, `journals` has one journal for each folder and knows which is a
ledger's. `reader` reads it back, `replay` turns blocks into runs and meta records, and `mark` says
up to where everything is also in its final place.

Promises: callbacks come after the sync, in the order of the appends of one lane. A failed sync is
never tried again. On a crash the last block may be torn and is cut; anything else that cannot be
read is an error, and never skipped in silence. Relies on `disk`. Others use `Journals`, `Journal`,
`Mark`, `Position`, `Meta` and `MetaOp`.
"""
