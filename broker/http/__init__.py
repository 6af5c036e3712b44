"""The HTTP API: from a socket to a call, and back as an answer or a problem.

`server` listens and ends in order, `routes` is the one table of calls, `router` finds one, `call`
is one request with its bounds, `forwarding` brings it to its owner, `problems` makes errors of it.
`stream` is an answer without end. `schemas` and `openapi` describe it all, `overview` and
`status_page` show the cluster. The handlers are in `api`. A single message whose head came before
goes past most of this (`request_edges`, `short_way`).

What would hurt is refused, each at its place: one connection too many (`connections`), another
site's page (`browsers`), a call between brokers that is none (`broker_calls`), a body that grows
(`inflating`), stalls, or has no room (`held_bytes`), a packed batch that is not what it says
(`batch_proofs`). Who wants single messages takes turns on the loop (`Turns`).

Promises: any broker answers alike; each error is a problem with a name and a status; a body is
bounded before it is read. Relies on the broker. A crash cuts the connection, and the client cannot
know what came of its call: it repeats it, with its sequence. Others use `BrokerServer`,
`HttpConfig` and `Problem`.
"""
