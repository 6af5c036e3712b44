"""TLS for all connections: settings, contexts, listening ports, and a CA for development.

Promises: a client always checks the server's certificate and name. TLS is at least 1.2. Handshakes
are bounded in time and number. If changed files cannot be loaded, the old certificates stay in use.
Relies on Python's OpenSSL. Keeps no state that a crash could lose. Others use `TlsConfig`,
`Certificates` and `TlsListener`.
"""
