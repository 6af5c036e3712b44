"""Operations on a partition, as typed requests, and how they reach its owner.

`kinds` is the list of operations with their rules and answers. A protocol calls `Operations`
(`asking`), which applies the rules of `rules`: rights and audit (`authorizer`), quotas and rates
(`quotas`, `processor_time`), sizes and sound batches (`batch_proofs`), producers (`producer_ids`).
`local` runs an operation on the open partition, `remote` sends it to another broker, `gathered`
puts single messages into shared batches on their way, `routing` finds the owner and waits during a
take-over, `serving` answers other brokers. `frames` and `channel` (pure) are the connection between
two brokers, `links` its two ends in asyncio, `upgrade` how it begins on the HTTP port.

Promises: an operation is run at the owner or refused. An operation whose outcome is unknown is
repeated only if it changes nothing. The caller's identity and the deadline travel with it.
Operations on a partition begin in the order in which a broker sent them. Relies on `cluster` and
`partition`. A crash ends the connections; the other side then knows which operations cannot have
begun. Others use `Operations`, `BrokerRules`, `Authorizer`, `OperationQuotas`, `Remote`, `Serving`,
`RULES` and the operations of `kinds`.
"""
