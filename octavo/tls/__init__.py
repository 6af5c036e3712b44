"""TLS between all that talks to one another: settings, contexts, ports that speak it, a CA to try.

`settings` has what may be set, one group for bookies, brokers and those who connect to them.
`contexts` makes `ssl.SSLContext` of it, the only place that does, and again when the files have
changed. `listening` is a port that speaks TLS, `start_tls` turns a connection over to it, `words`
says what went wrong and what would be right, `revocation` looks at lists of what CAs have revoked,
and `authority` makes certificates for development.

Promises: whoever connects checks the other's certificate and name, always; nothing below TLS 1.2;
a handshake takes a bounded time, and so many at once; what cannot be loaded anew leaves the
certificates as they were, and is told. Relies on OpenSSL as Python has it. A crash leaves nothing.
"""
