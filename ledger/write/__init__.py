"""Writing a ledger: the same bytes to every bookie, acks in order.

`writer` is what callers see: add, wait, close. `writer_state` is the pure state machine of what is
pending, confirmed, replaced and closed. `ensemble_writer` drives it over real bookies, `pending`
holds what may have to be sent again, `bookie_channel` is one position of the ensemble, `forces` has
bookies sync what they deferred, `explicit_ids` takes adds in any order, `taken_ids` avoids ids that
somebody has taken.

Promises: an add is answered when an ack quorum has it and all adds before it are answered; for
good, unless its sync was deferred: then a force says when. A bookie that fails is replaced, or
waited for, within bounds of time and memory. On a crash of the writer the ledger stays open. Relies
on `bookies`. Others use `LedgerWriter`, `ExplicitIds` and `WriterState`.
"""
