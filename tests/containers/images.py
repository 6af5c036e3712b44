"""The images of the tests, made here: nothing is pulled from a registry of images. Debian with
Python by `compose/base-image.sh`, ZooKeeper from its Debian package, Octavo by
`compose/Dockerfile`. Containers reach no package index here, so wheels are fetched outside of
them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.containers.engine import NoEngine, locked

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
