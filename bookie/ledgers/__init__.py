"""What a bookie knows of each ledger beside its entries, and who it is itself.

`control` admits adds, fences, takes explicit LACs and deletes, all journaled; `rules` are its pure
rules, `state` what is kept for each ledger and its file, `newcomers` how many ledgers may begin
that nobody vouches for. `cookies` and `identity` say whose folders these are; `limbo` remembers
what this bookie may have lost.

Promises: what was admitted before a fence stands before it in the journal, and a fence is answered
when it is durable. A bookie that lost something never denies what it may have had. On a crash the
journal has what the state's file lacks. Relies on `journal` and `disk`. Others use `LedgerControl`,
`LedgerStates`, `StateFile`, `Limbo` and `Identity`.
"""
