"""The ledger client: a replicated log on several bookies.

Top level: `client` (create, open, recover, delete, list), `context` (the interface of the client
that writers, readers and recoveries use), `actions` (the actions that the pure cores return),
`quorum` (which bookies must hold an entry), `records` (change a ledger's record when replies get
lost), `options`, `encryption` and `errors`. Rooms: `rereplication`, `write`, `recover`, `read`,
`bookies` and `offload`. A room imports only rooms below it; pyproject.toml has the order, and
`lint-imports` checks it.

Promises: an acknowledged entry is on an ack quorum and stays readable; a closed ledger ends at the
same entry for every reader; after a fence the old writer gets no acknowledgement. If the writer
crashes, the ledger stays open until a client recovers it. Relies on `metadata` for the records, and
on bookies to keep a fence. Others use `LedgerClient`, `LedgerWriter`, `LedgerReader`,
`LedgerOptions` and the errors.
"""
