"""The ledger client: a replicated log on several bookies.

Rooms: `rereplication`, `write`, `recover`, `read`, `bookies`, `offload`.
Promises: an acknowledged entry is on an ack quorum and stays readable; a closed ledger ends at the
same entry for every reader; after a fence the old writer gets no acknowledgement.
After its writer's crash a ledger stays open until a client recovers it.
Relies on `metadata` for the records, and on bookies to keep a fence.
Others use `LedgerClient`, `LedgerWriter`, `LedgerReader`, `LedgerOptions` and the errors.
"""
