"""A bookie's state of each ledger besides its entries, and the bookie's identity.

`control` admits adds, fences and deletes by the pure `rules`; `cookies` and `identity` check which
bookie owns the folders.
Promises: adds that were admitted before a fence are before it in the journal, and a fence is
answered when it is durable. A bookie that lost data never denies an entry that it may have had.
After a crash the journal has the changes that the state file lacks.
Relies on `journal` and `disk`.
Others use `LedgerControl`, `LedgerStates`, `StateFile`, `Limbo` and `Identity`.
"""
