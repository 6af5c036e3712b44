"""What a broker can do with a partition, as typed operations, and how they reach its owner.

`kinds` is the list of operations with their rules and answers. `local` runs one on the open
partition, `remote` ships one to another broker, `gathered` has single messages share batches on
their way, `routing` finds the owner and waits out a take-over, `serving` answers other brokers.
`frames` and `channel` (pure) are the connection between two brokers, `links` its two ends in
asyncio, `upgrade` how it begins on the HTTP port.

Promises: an operation is run at the owner or refused; one whose outcome is unknown is never sent
again, unless it changes nothing; its caller's identity and its deadline go with it; operations on a
partition begin in the order in which one broker sent them. Relies on `cluster` and `partition`. A
crash ends the connections; the other side then knows which operations cannot have been begun.
Others use `Remote`, `Serving`, `RULES` and the operations of `kinds`.
"""
