"""A partition's state besides its messages: cursors, producers, and leases at a planned end.

`cursor` has the acks of a subscription, `producers` the sequences of each producer and the
exclusive producer, `leases` the leases that an owner leaves, `stream` the state of a durable
stream, all pure. `format` encodes them as small operations, which `log` writes to the partition's
state ledger by group commit.

Promises: `append` returns when the operation is on an ack quorum, so no answered ack is lost, and a
repeated publish is recognised. After a crash the next owner replays the ledger and writes a
snapshot into a new ledger. Relies on `log/record.py`, which names the state ledger. Others use
`StateLog`, `Cursor`, `ProducerTable` and the operations of `format`.
"""
