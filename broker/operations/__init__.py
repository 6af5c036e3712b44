"""Operations on a partition, as typed requests, and how they reach its owner.

A protocol calls `Operations`, which applies the rules (`rules`) and runs an operation of `kinds`
here (`local`) or at the owner (`remote`, `serving`, over a `channel`).

Promises: an operation is run at the owner or refused. If its outcome is unknown, it is repeated
only if it changes nothing. The caller's identity and the deadline travel with it. Operations on a
partition begin in the order sent.

After a crash the other side knows which operations cannot have begun.

Relies on `cluster` and `partition`.

Others use `Operations`, `BrokerRules`, `Authorizer`, `OperationQuotas`, `Remote`, `Serving`,
`RULES` and the operations of `kinds`.
"""
