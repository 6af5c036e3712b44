"""Write a ledger: the same bytes to every bookie, acks in order.

`writer` is the callers' interface; `ensemble_writer` drives the pure `writer_state` over real
bookies.
Promises: an add is answered when an ack quorum has the entry and all earlier adds are answered. The
entry is then durable; with deferred syncs after a force. A failed bookie is replaced, or waited
for, within bounds.
After a crash the ledger stays open.
Relies on `bookies`.
Others use `LedgerWriter`, `ExplicitIds` and `WriterState`.
"""
