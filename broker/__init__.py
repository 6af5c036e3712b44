"""Topics over ledgers: brokers decide everything and keep nothing.

At the top: `broker` (one broker, whole), `config`, `types` (names, offsets, ids), `errors` and
`metrics`. Below it the rooms, the higher ones first: `http` the API, then `cluster` who owns what,
`partition` one owned partition, `bulkload`, `subscriptions`, `state`, `log` and `clock`. A room
knows only those below it; pyproject.toml has the order, and `lint-imports` holds it.

Promises: what was acknowledged is durable on an ack quorum of bookies, has one offset for ever, and
is delivered at least once to every subscription. Two owners are never both acknowledged: the fence
decides, not the record. On a crash nothing is lost, for nothing was here: the next owner recovers
the last ledger and goes on. Relies on `ledger` and `metadata`. Others use `Broker`, `BrokerConfig`
and what `types` has.
"""
