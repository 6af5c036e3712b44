"""The ledger client: a replicated log on several bookies.

At the top: `client` (create, open, recover, delete, list), `context` (what its parts need of it),
`actions` (the actions that the pure cores ask for), `quorum` (which bookies must hold an entry),
`records` (changing a ledger's record when replies get lost), `options` and `errors`. Below are the
rooms: `rereplication`, `write`, `recover`, `read`, `bookies` and `offload`. A room imports only
rooms below it; pyproject.toml has the order, and `lint-imports` checks it.

Promises: an acknowledged entry is on an ack quorum and stays readable; a closed ledger ends at the
same entry for every reader; after a fence the old writer gets no acknowledgement. On a crash of the
writer the ledger stays open until a client recovers it. Relies on `metadata` for the records, and
on bookies to keep a fence. Others use `LedgerClient`, `LedgerWriter`, `LedgerReader`,
`LedgerOptions` and the errors.
"""
