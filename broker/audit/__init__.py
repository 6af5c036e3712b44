"""The audit log of one broker: who did what to which resource from where, and whether they might.

`log` takes each decision of the gate, tells it as a structured log event, and has `writer` bring it
into the topic octavo/audit, batch by batch, wherever that is served.

Promises: no call waits for it; a decision is told or counted, and what finds no room is counted as
`lost` in the next event that does. A batch is stored once, also when an owner dies under it. A
crash of this broker loses what it had not stored yet, which is about a second's; the log events are
written at once. Relies on octavo.security for what is told, and on idempotent producers.
Others use `AuditLog`.
"""
