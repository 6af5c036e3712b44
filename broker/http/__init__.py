"""The HTTP API: from a socket to a call, and back as an answer or a problem.

`server` listens and ends in order, `routes` is the table of calls, `forwarding` runs a call at the
partition's owner, `problems` turns errors into answers; the handlers are in `api`. A single message
with a known head bypasses most of this (`connection_bytes`, `fast_publish`).

Promises: all brokers answer alike; each error is a problem with a name and a status; a body is
bounded before it is read.

Relies on the broker.

A crash cuts the connection; the client does not know the outcome of its call, and repeats it, with
its sequence.

Others use `BrokerServer`, `HttpConfig` and `Problem`.
"""
