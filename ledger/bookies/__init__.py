"""The connections of a process to bookies.

`placement` chooses the bookies of an ensemble, pure.
Promises: every request ends, with an answer or an error, within its deadline. A suspected bookie is
chosen last, but not excluded. A recovery has separate connections.
Relies on the registry in `metadata`.
After a crash connections are opened again.
Others use `Bookie`, `RequestClass`, `BookieConnection` and `choose_ensemble`.
"""
