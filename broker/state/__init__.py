"""What a partition remembers beside its messages: cursors and producers.

`cursor` is what a subscription has acked, `dedup` what each producer has sent, `stream` what makes
the log a durable stream, all pure. `format`
has them as small operations, `log` writes those to the partition's state ledger by group commit.

Promises: `append` returns when the operation is on an ack quorum, so an ack that was answered is
not lost and a repeat is known as one. On a crash the next owner replays the ledger and writes one
snapshot into a fresh one. Relies on `log/record.py`, which names the state ledger. Others use
`StateLog`, `Cursor`, `ProducerTable` and the operations of `format`.
"""
