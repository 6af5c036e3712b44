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
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


ROOT = Path(__file__).resolve().parents[2]
BASE = "octavo-base:local"
ZOOKEEPER = "octavo-zookeeper:local"
OCTAVO = "octavo:tests"
_WHEELS = ROOT / "compose" / "wheels"
_IMAGE_PYTHON = "3.11"


@dataclass(frozen=True)
class Images:
    octavo: str = OCTAVO
    zookeeper: str = ZOOKEEPER
    took_s: float = 0.0


def build_images() -> Images:
    """Build the images of this work tree. Raises `NoEngine` where no base image can be made, or
    no container run."""
    started = time.monotonic()
    with locked("images"), ThreadPoolExecutor() as pool:
        wheels = pool.submit(_fetch_wheels)
        if not _is_there(BASE):
            _base_image()
        _check_containers()
        zookeeper = pool.submit(_base_image, "--zookeeper") if not _is_there(ZOOKEEPER) else None
        wheels.result()
        _build()
        if zookeeper is not None:
            zookeeper.result()
    return Images(took_s=time.monotonic() - started)


def _is_there(image: str) -> bool:
    asked = subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False)
    return asked.returncode == 0


def _base_image(*arguments: str) -> None:
    if os.geteuid() != 0:
        raise NoEngine("the base image is made by debootstrap, which needs root")
    try:
        _run([str(ROOT / "compose" / "base-image.sh"), *arguments])
    except RuntimeError as error:
        raise NoEngine(f"no base image from the Debian archive: {error}") from error


def _check_containers() -> None:
    """A sandbox may let an engine start and forbid its containers."""
    try:
        _run(["docker", "run", "--rm", BASE, "python3", "--version"])
    except RuntimeError as error:
        raise NoEngine(f"the engine runs no containers here: {error}") from error


def _fetch_wheels() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = project["build-system"]["requires"] + project["project"]["dependencies"]
    stamp, wanted = _WHEELS / ".fetched-for", "\n".join(needed)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    foreign = [] if sys.version_info[:2] == (3, 11) else ["--python-version", _IMAGE_PYTHON]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(_WHEELS)]
    _run([*command, *foreign, "--only-binary", ":all:", *needed])
    stamp.write_text(wanted)


def _build() -> None:
    how = ["--build-arg", f"BASE_IMAGE={BASE}", "--file", str(ROOT / "compose" / "Dockerfile")]
    _run(["docker", "build", "--quiet", "--tag", OCTAVO, *how, str(ROOT)])


def _run(command: list[str]) -> None:
    ran = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
    )
    if ran.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stdout[-3000:]}"
        )
