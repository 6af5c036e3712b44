"""The address of a host without power, for tests of how long callers wait for it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def vanished_host() -> Iterator[str]:
    """Return a URL at which connections are neither accepted nor refused."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):  # fill its queue, so that the kernel drops further connections
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
