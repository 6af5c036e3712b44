"""TLS for all connections: settings, contexts, listening ports, and a CA for development.

`settings` is shared by bookies, brokers and their clients. `contexts` is the only module that makes
an `ssl.SSLContext`; it makes new contexts when the files change. `listening` is a port that speaks
TLS, `start_tls` upgrades a plain connection, `words` explains TLS errors, `revocation` checks
revocation lists, and `authority` makes certificates for development.

Promises: a client always checks the server's certificate and name. TLS is at least 1.2. The time of
a handshake and the number of handshakes are bounded. If changed files cannot be loaded, the old
certificates stay in use and the error is logged. Relies on Python's OpenSSL. Keeps no state that a
crash could lose.
"""
