"""The life of a process: uvloop, signals, readiness, its supervisor, exit codes.

On a socket pair, the process sends its supervisor one JSON line, `{"event": "ready", …}` or
`{"event": "failed", "reason": …}`, with `lost_session` if a new start may succeed. End of file, or
the kernel's SIGTERM, means that the supervisor is gone: the process stops.

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
from octavo.metadata.store import SessionExpired
from octavo.process import outside_watch
from octavo.process.garbage import ShortCollections
from octavo.process.loop_watch import LoopWatch
from octavo.process.outside_watch import OutsideWatch
from octavo.process.parent import die_with_parent
from octavo.process.spec import ProcessSpec
from octavo.protocol.codes import OctavoError

log = structlog.get_logger()

STOP_TIMEOUT_S = 40.0
"""Longer than the graceful stop of every part. After this, the process exits anyway."""


class Life:
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
        self.is_ready = True
        ShortCollections().begin()
        self._tell({"event": "ready", "pid": os.getpid(), **facts})

    def stop(self, reason: str) -> None:
        if not self._ended.done():
            log.info("stopping", reason=reason)
            self._ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def fail_with(self, failed: asyncio.Future[None]) -> None:
        try:
            await asyncio.shield(failed)
        except Exception as error:
            self.fail(error)

    async def until_stopped(self) -> None:
        await asyncio.shield(self._ended)

    def failed(self, error: BaseException) -> None:
        known = isinstance(error, OctavoError | OSError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        lost_session = isinstance(error, SessionExpired)
        if lost_session:
            reason += (
                ". The process could not renew its session in time, because the machine or the "
                "metadata store was too busy: start it again, or set a longer session_timeout_ms"
            )
        log.error("process_failed", reason=reason, exc_info=None if known else error)
        self._tell({"event": "failed", "reason": reason, "lost_session": lost_session})

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
    """Raise the limit of open files: each connection and each entry log that is read needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS grants less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_process(main: Main, spec: ProcessSpec, control_fd: int | None = None) -> int:
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
        task.cancel()  # a stop was requested during the start
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
