"""A partition's state besides its messages: cursors, producers, and leases at a planned end.

`cursor`, `producers`, `leases` and `stream` are pure; `format` encodes them as small operations,
which `log` writes to the partition's state ledger.

Promises: `append` returns when the operation is on an ack quorum, so no answered ack is lost, and a
repeated publish is recognised.

After a crash the next owner replays the ledger and writes a snapshot into a new ledger.

Relies on `log/record.py`, which names the state ledger.

Others use `StateLog`, `Cursor`, `ProducerTable` and the operations of `format`.
"""
