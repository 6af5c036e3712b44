"""Serve the clients of a bookie: their sockets and their requests.

`listener` opens the port (plain or TLS). `server` holds the connections. `connection` splits chunks
into frames and writes the answers. `requests` answers everything except adds, `in_flight` bounds
what runs for one client, and `read_scheduler` decides which connection reads next. v3 frames take
the same path: `v3_adds` turns v3 adds into v2 batches, and `v3_calls` answers the operations that
v2 lacks. `back_pressure` records why a socket is not being read.

Promises: adds and reads never wait for each other. A client that leaves its answers unread delays
no other client, and is disconnected in the end. A crash cuts all connections, and clients repeat
the requests that got no answer. Relies on the storage and on `back_pressure`. Others use
`BookieServer` and `ListenFailed`.
"""
