"""Serve the clients of a bookie: their sockets and their requests.

`server` holds the connections, `connection` splits chunks into frames, `requests` answers all but
adds.
Promises: adds and reads never wait for each other. A client that leaves its answers unread delays
no other client, and is disconnected in the end.
A crash cuts all connections; clients repeat their requests.
Relies on the storage and on `back_pressure`.
Others use `BookieServer` and `ListenFailed`.
"""
