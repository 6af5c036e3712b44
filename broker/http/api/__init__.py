"""The calls, by noun: what each takes, does and answers.

`topics`, `subscriptions`, `publish`, `read`, `deliveries` (receive), `acks`, `push`, `bulk_loads`
and `cluster` are the handlers. `follow` has the stream of a partition, `feed` and `sockets` those
of a subscription. `short_way` answers single messages whose head is known.
`batching` makes batches of a publish request's messages and brings them to their owners; `payloads`
and `topic_body` read and show JSON, `answers` has the shapes of what is said.

Promises: what is wrong is refused with its name before anything is changed. Handlers hold nothing
between calls, so a crash takes nothing with it. Relies on the rows of `http/routes.py`;
`http/schemas.py` describes what is read and said here. Others use the handlers through that table
alone.
"""
