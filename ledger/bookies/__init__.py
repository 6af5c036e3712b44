"""The connections of a process to bookies.

`bookies` knows the address and health of each bookie, and its listeners; `connection` is a socket
with its pending requests, `v3_connection` a connection to an Apache bookie in v3 frames;
`placement` chooses the bookies of an ensemble, pure.

Promises: every request ends, with an answer or an error, within its deadline. A suspected bookie is
chosen last, but not excluded. A recovery has separate connections. Relies on the registry in
`metadata`. Nothing is kept over a crash: connections are opened again. Others use `Bookie`,
`RequestClass`, `BookieConnection` and `choose_ensemble`.
"""
