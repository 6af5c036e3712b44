"""A bookie's state of each ledger besides its entries, and the bookie's identity.

`control` admits adds, fences, takes explicit LACs and deletes, all journaled; `rules` are its pure
rules, `state` has the state of each ledger and its file, `newcomers` bounds new ledgers that
metadata may not know. `cookies` and `identity` check which bookie owns the folders; `limbo`
remembers what this bookie may have lost.

Promises: adds that were admitted before a fence are before it in the journal, and a fence is
answered when it is durable. A bookie that lost data never denies an entry that it may have had. On
a crash the journal has the changes that the state's file lacks. Relies on `journal` and `disk`.
Others use `LedgerControl`, `LedgerStates`, `StateFile`, `Limbo` and `Identity`.
"""
