"""Clients: their sockets, their requests, and why one is not read at present.

`server` listens, `connection` takes chunks apart and writes answers, `requests` does what is asked
beside adds, `answers` encodes the answers to adds once for many, `under_way` keeps what runs for
one client within bounds, `read_line` schedules cold reads, `flow` is the one place that leaves a
socket unread and says why.

Promises: adds and reads never wait for one another; a client that does not take its answers holds
nobody else up and is cut off in the end. Relies on the storage and on `admission`. A crash cuts all
connections; who was not answered asks again. Others use `BookieServer` and `ListenFailed`.
"""
