"""Topics over ledgers: brokers make all decisions and store no data.

At the top: `broker` (one broker, whole), `config`, `types` (names, offsets, ids), `errors` and
`metrics`. Below are the rooms, from top to bottom: `http` (the API), `cluster` (ownership),
`partition` (a partition that this broker owns), `bulkload`, `subscriptions`, `state`, `log` and
`clock`. A room imports only rooms below it; pyproject.toml has the order, and `lint-imports` checks
it.

Promises: an acknowledged message is durable on an ack quorum of bookies, keeps its offset for ever,
and is delivered at least once to every subscription. Bookies never acknowledge two owners of a
partition: the fence decides, not the record. On a crash no data is lost, because brokers store
none: the next owner recovers the last ledger and continues. Relies on `ledger` and `metadata`.
Others use `Broker`, `BrokerConfig` and what `types` has.
"""
