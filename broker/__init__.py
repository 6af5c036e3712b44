"""Topics over ledgers: brokers make all decisions and store no data.

The rooms from top to bottom: `http` (the API), `cluster` (ownership), `partition`, `bulkload`,
`subscriptions`, `state`, `log`, `clock`; a room imports only rooms below it.

Promises: an acknowledged message is durable on an ack quorum of bookies, keeps its offset for ever,
and is delivered at least once to every subscription. Bookies never acknowledge two owners of a
partition: the fence decides, not the record.

On a crash no data is lost: the next owner recovers the last ledger and continues.

Relies on `ledger` and `metadata`.

Others use `Broker`, `BrokerConfig` and what `types` has.
"""
