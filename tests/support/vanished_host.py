"""An address as of a host without power: for tests of who waits for it, and how long."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def vanished_host() -> Iterator[str]:
    """A URL at which nobody takes a connection, nor refuses one."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):  # its queue is full: the kernel drops what comes now
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
