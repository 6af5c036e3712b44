"""Write a ledger: the same bytes to every bookie, acks in order.

`writer` is the interface of callers: add, wait, close. `writer_state` is the pure state machine of
pending and confirmed entries, ensemble changes and the close. `ensemble_writer` drives it over real
bookies, `pending` holds entries that may be sent again, `bookie_channel` is one position of the
ensemble, `forces` makes bookies sync deferred adds, `explicit_ids` takes adds in any order,
`taken_ids` avoids ledger ids that another process has taken.

Promises: an add is answered when an ack quorum has the entry and all earlier adds are answered. The
entry is then durable; with deferred syncs it is durable after a force. A failed bookie is replaced,
or waited for, within bounds of time and memory. If the writer crashes, the ledger stays open.
Relies on `bookies`. Others use `LedgerWriter`, `ExplicitIds` and `WriterState`.
"""
