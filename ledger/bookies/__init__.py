"""The bookies that a process talks to.

`bookies` knows where each lives, whether it is well, and who listens to it; `connection` is one
socket with its requests in order, `v3_connection` one to a bookie of Apache's in v3 frames;
`placement` chooses, purely, which make an ensemble.

Promises: every request ends, with an answer or an error, within its deadline. Who is suspected
comes last and is not shut out. A recovery's requests have connections of their own. Relies on the
registry in `metadata`. Nothing survives a crash, and nothing has to. Others use `Bookies`,
`Bookie`, `RequestClass`, `BookieConnection` and `choose_ensemble`.
"""
