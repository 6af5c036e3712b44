"""The ledger client: bookies made one log.

At the top: `client` (create, open, recover, delete, list), `context` (what its parts need of it),
`actions` (what the pure cores want done), `quorum` (who must hold an entry), `records` (changing a
ledger's record when replies get lost), `options` and `errors`. Below it the rooms: `rereplication`,
`write`, `recover`, `read`, `bookies` and `offload`. A room knows only those below it;
pyproject.toml has the order, and `lint-imports` holds it.

Promises: what was acknowledged is on an ack quorum and stays readable; a closed ledger ends at the
same entry for everybody; after a fence the old writer is never acknowledged. On a crash of the
writer the ledger stays open until somebody recovers it. Relies on `metadata` for the records, and
on bookies to keep a fence. Others use `LedgerClient`, `LedgerWriter`, `LedgerReader`,
`LedgerOptions` and the errors.
"""
