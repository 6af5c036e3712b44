"""A container engine for tests: a running engine, or a `dockerd` that the tests start.
Concurrent test processes share it: the first starts it, the last ends it. Leftovers of a killed
test are removed by the next test that finds itself alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LABEL = "octavo.tests"
READY_S = 60.0
_FOLDER = Path(tempfile.gettempdir()) / f"octavo-containers-{os.geteuid()}"
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


class NoEngine(Exception):
    pass


@contextlib.contextmanager
def locked(name: str, how: int = fcntl.LOCK_EX) -> Iterator[int]:
    _FOLDER.mkdir(mode=0o700, exist_ok=True)
    with open(_FOLDER / name, "wb") as file:
        fcntl.flock(file, how)
        yield file.fileno()


@contextlib.contextmanager
def running_engine() -> Iterator[None]:
    """Run an engine that the `docker` command and the client libraries find. Raises `NoEngine`."""
    with contextlib.ExitStack() as stack:
        with locked("starting"):
            users = stack.enter_context(locked("users", fcntl.LOCK_SH))
            _start()
            if _alone(users):
                _remove_leftovers()
            fcntl.flock(users, fcntl.LOCK_SH)  # A failed try to be alone released it.
        try:
            yield
        finally:
            with locked("starting"):
                if _alone(users):
                    _stop()


def _alone(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answer() -> str | None:
    if shutil.which("docker") is None:
        return "the command docker is missing (Debian: apt-get install docker.io)"
    asked = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    return asked.stderr.strip() or "docker version failed" if asked.returncode else None


def _start() -> None:
    why = _answer()
    if why is None:
        return
    if os.environ.get("DOCKER_HOST"):
        raise NoEngine(f"the engine at DOCKER_HOST does not answer: {why}")
    if os.geteuid() != 0:
        raise NoEngine(f"no container engine answers, and only root can start one: {why}")
    if shutil.which("dockerd") is None:
        raise NoEngine(f"{why}; no dockerd to start (Debian: apt-get install docker.io)")
    with contextlib.suppress(OSError):
        # Where forwarding is off, dockerd turns it on and drops other forwarded packets: turn it
        # on before.
        _FORWARDING.write_text("1")
    log = _FOLDER / "dockerd.log"
    with open(log, "wb") as output:
        engine = subprocess.Popen(
            ["dockerd"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # It must not get the tests' Ctrl-C.
        )
    (_FOLDER / "dockerd.pid").write_text(str(engine.pid))
    deadline = time.monotonic() + READY_S
    while (why := _answer()) is not None:
        if engine.poll() is not None or time.monotonic() > deadline:
            engine.kill()
            engine.wait()
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise NoEngine(f"dockerd does not start here: {' '.join(last) or why}")
        time.sleep(0.2)


def _stop() -> None:
    """Stop it, if tests started it. The process may be another test's child, or an orphan."""
    file = _FOLDER / "dockerd.pid"
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        engine = int(file.read_text())
        if Path(f"/proc/{engine}/comm").read_text().strip() == "dockerd":
            os.kill(engine, signal.SIGTERM)
            deadline = time.monotonic() + READY_S
            while _lives(engine) and time.monotonic() < deadline:
                time.sleep(0.1)
    file.unlink(missing_ok=True)


def _lives(engine: int) -> bool:
    """Whether it is neither dead nor a zombie that this process has still to wait for."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(engine, os.WNOHANG) != (0, 0):
            return False
    return Path(f"/proc/{engine}").exists()


def _remove_leftovers() -> None:
    for kind, remove in (
        ("container", ["rm", "--force", "--volumes"]),
        ("network", ["rm"]),
        ("volume", ["rm"]),
    ):
        every = ["--all"] if kind == "container" else []
        found = subprocess.run(
            ["docker", kind, "ls", *every, "--quiet", "--filter", f"label={LABEL}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        if found:
            subprocess.run(["docker", kind, *remove, *found], capture_output=True, check=True)
