"""The life of one process: uvloop, signals, readiness, the bond to its supervisor, exit codes.

A process that a supervisor started holds one end of a socket pair. Over it goes one JSON line,
`{"event": "ready", …}` or `{"event": "failed", "reason": …}`; its end of file means that the
supervisor is gone, and the process then stops by itself: no orphan keeps ports and locks. The
kernel says so too, by SIGTERM when the supervisor dies, wherever else its end of the pair is open.
A process whose loop stands still cannot stop; loop_watch.py and outside_watch.py end it.

Exit codes: 0 stopped as asked, 1 could not start or failed while serving, 2 stop took too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
import uvloop

from octavo.logs import configure_logging
from octavo.process import outside_watch
from octavo.process.garbage import ShortCollections
from octavo.process.loop_watch import LoopWatch
from octavo.process.outside_watch import OutsideWatch
from octavo.process.parent import die_with_parent
from octavo.process.spec import ProcessSpec
from octavo.protocol.codes import OctavoError

log = structlog.get_logger()

STOP_TIMEOUT_S = 40.0
"""Longer than every graceful stop below it; then the process leaves without."""


class Life:
    """Handed to a process's main: it says when it is ready, and waits here for its end."""

    def __init__(self, control: socket.socket | None = None) -> None:
        self.is_ready = False
        self._control = control
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, signal.Signals(number).name)
        if control is not None:
            control.setblocking(False)
            loop.add_reader(control.fileno(), self._on_control)

    def ready(self, **facts: Any) -> None:
        """Tell the supervisor, if there is one, that work can begin; `facts` go along."""
        self.is_ready = True
        ShortCollections().begin()
        self._tell({"event": "ready", "pid": os.getpid(), **facts})

    def stop(self, reason: str) -> None:
        """End the process in good order."""
        if not self._ended.done():
            log.info("stopping", reason=reason)
            self._ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End the process because serving on would be wrong; exit code 1."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def fail_with(self, failed: asyncio.Future[None]) -> None:
        """End the process with the error that `failed` gets, if it ever does."""
        try:
            await asyncio.shield(failed)
        except Exception as error:
            self.fail(error)

    async def until_stopped(self) -> None:
        """Return when asked to stop; raise what `fail` was given."""
        await asyncio.shield(self._ended)

    def failed(self, error: BaseException) -> None:
        """The last word: to the log, and to the supervisor."""
        known = isinstance(error, OctavoError | OSError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        log.error("process_failed", reason=reason, exc_info=None if known else error)
        self._tell({"event": "failed", "reason": reason})

    def _on_control(self) -> None:
        assert self._control is not None
        try:
            gone = self._control.recv(1024) == b""
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self.stop("the supervisor is gone")

    def _tell(self, what: dict[str, Any]) -> None:
        if self._control is not None:
            try:
                self._control.send(json.dumps(what, default=str).encode() + b"\n")
            except OSError:
                log.warning("supervisor_unreachable", told=what["event"])


Main = Callable[[ProcessSpec, Life], Awaitable[None]]


def allow_open_files() -> None:
    """Let this process open as many files as the system lets it, instead of the customary 1,024.

    Each connection is one, and each entry log that is read.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS grants less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_process(main: Main, spec: ProcessSpec, control_fd: int | None = None) -> int:
    """Run `main` on uvloop until it is stopped; return the exit code."""
    allow_open_files()
    service = "bookie" if "bookie" in spec.sections else "broker"
    configure_logging(
        service=service,
        node=spec.name,
        form=spec.log_format,
        level=spec.log_level,
        path=Path(spec.log_file) if spec.log_file else None,
        bytes_max=spec.log_bytes_max,
        files_max=spec.log_files_max,
    )
    if control_fd is not None:
        die_with_parent(signal.SIGTERM)
    watch = OutsideWatch(turns_max=outside_watch.STANDS_STILL_S)
    control = socket.socket(fileno=control_fd) if control_fd is not None else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_live(main, spec, control, watch))


async def _live(
    main: Main, spec: ProcessSpec, control: socket.socket | None, outside: OutsideWatch
) -> int:
    life = Life(control)
    watch = LoopWatch()
    watch.start()
    outside.beat()
    task = asyncio.ensure_future(main(spec, life))
    ended = asyncio.ensure_future(life.until_stopped())
    await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
    if not task.done() and not life.is_ready:
        task.cancel()  # asked to stop while it was still starting
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await task
    except asyncio.CancelledError:
        return 0
    except TimeoutError:
        life.failed(TimeoutError(f"did not stop within {STOP_TIMEOUT_S:.0f} s"))
        return 2
    except Exception as error:
        life.failed(error)
        return 1
    finally:
        watch.stop()
        outside.stop()
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
    log.info("stopped")
    return 0
