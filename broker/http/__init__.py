"""The HTTP API: from a socket to a call, and back as an answer or a problem.

`server` listens and ends in order, `routes` is the table of calls, `router` finds a call's route,
`call` is a request with its limits, `forwarding` runs it at the partition's owner, `problems` turns
errors into answers. `stream` is an answer without end. `schemas` and `openapi` describe all calls,
`overview` shows the cluster. The handlers are in `api`. A single message with a known head bypasses
most of this (`connection_bytes`, `fast_publish`).

Harmful requests are refused: a connection beyond the limit (`connections`), another site's page
(`csrf`), a forged connection of brokers (`broker_connections`), a body that grows (`request_body`),
stalls, or has no room (`held_bytes`). Requests for single messages take turns on the loop
(`Turns`).

Promises: all brokers answer alike; each error is a problem with a name and a status; a body is
bounded before it is read. Relies on the broker. A crash cuts the connection; the client does not
know the outcome of its call, and repeats it, with its sequence. Others use `BrokerServer`,
`HttpConfig` and `Problem`.
"""
