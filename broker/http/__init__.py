"""The HTTP API: from a socket to a call, and back as an answer or a problem.

`server` listens and ends in order, `routes` is the one table of calls, `router` finds one, `call`
is one request with its bounds, `forwarding` brings it to its owner, `problems` makes errors of it.
`schemas` and `openapi` describe it all, `overview` and `status_page` show the cluster, and
`held_bytes`, `inflating` and `browsers` refuse what would hurt. The handlers are in `api`.

Promises: any broker answers alike; each error is a problem with a name and a status; a body is
bounded before it is read. Relies on the broker. A crash cuts the connection, and the client cannot
know what came of its call: it repeats it, with its sequence. Others use `BrokerServer`,
`HttpConfig` and `Problem`.
"""
