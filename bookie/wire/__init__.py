"""Clients: their sockets and their requests.

`listener` is the port, plain or TLS, `server` has its clients, `connection` takes chunks apart and
gathers and writes answers, `requests` does what is asked beside adds, `in_flight` keeps what runs
for one client within bounds, `read_scheduler` says which connection may read next. v3 frames come
the same way: `v3_adds` makes v2's batches of them, `v3_calls` answers what v2 has no frames for.
Why a socket is unread at present is said in `back_pressure`.

Promises: adds and reads never wait for one another; a client that does not take its answers holds
nobody else up and is cut off in the end. Relies on the storage and on `back_pressure`. A crash cuts
all connections; who was not answered asks again. Others use `BookieServer` and `ListenFailed`.
"""
