"""The HTTP API: from a socket to a call, and back as an answer or a problem.

`server` listens and ends in order, `routes` is the table of calls, `router` finds a call's route,
`call` is a request with its limits, `forwarding` takes it to its owner, `problems` turns errors
into answers. `stream` is an answer without end. `schemas` and `openapi` describe all calls,
`overview` shows the cluster. The handlers are in `api`. A single message whose
head came before bypasses most of this (`connection_bytes`, `fast_publish`).

Harmful requests are refused, each at its place: a connection beyond the limit (`connections`),
another site's page (`csrf`), a forged call between brokers (`broker_calls`), a body that grows
(`request_body`), stalls, or has no room (`held_bytes`). Requests for single messages take turns on
the loop (`Turns`).

Promises: any broker answers alike; each error is a problem with a name and a status; a body is
bounded before it is read. Relies on the broker. A crash cuts the connection, and the client cannot
know the outcome of its call: it repeats the call, with its sequence. Others use `BrokerServer`,
`HttpConfig` and `Problem`.
"""
