"""How much may be under way at once, and how far the disk is behind. Pure.

`budget` bounds bytes that all connections share: unsent answers, and frames that are half here.
`pressure` says how far the disk is behind all adds together, and from which level on whose sockets
stay unread.

Promises: memory is bounded however many connections there are, and who sends little goes on. Relies
on the write cache's figures. Everything is in memory and begins at zero after a crash. Others use
`Budget`, `FrameRoom`, `AddPressure` and `Pressure`; that a socket is unread, and why, is decided in
one place: `wire/flow.py`.
"""
