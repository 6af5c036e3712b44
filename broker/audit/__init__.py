"""The audit log of a broker: each caller's operation, resource and address, and the decision.

`log` writes each decision of the gate as a structured log event, and passes it to `writer`, which
publishes it to the topic octavo/audit, batch by batch, at the topic's owner.

Promises: no call waits for the audit log; a decision is written or counted: those that find no room
are counted as `lost` in the next event. A batch is stored once, even if its owner dies. A crash of
this broker loses decisions that it had not published, about a second's; log events are written at
once. Relies on octavo.security for the decisions, and on idempotent producers. Others use
`AuditLog`.
"""
