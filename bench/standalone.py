"""A standalone cluster of processes for benchmarks."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from octavo.loop_thread import LoopThread
from octavo.process.spec import ProcessSpec
from octavo.standalone.child import Child
from octavo.standalone.cluster_file import ClusterFile
from octavo.standalone.supervisor import Plan, Supervisor

_STOP_S = 120


@contextlib.contextmanager
def standalone(
    folder: Path, make_child: Callable[[str, ProcessSpec, Path], Child] = Child
) -> Iterator[ClusterFile]:
    thread = LoopThread("standalone")
    supervisor = Supervisor(Plan(folder=folder, port_base=0), make_child=make_child)
    try:
        thread.call(supervisor.start())
        yield supervisor.cluster
    finally:
        thread.call(supervisor.stop())
        thread.stop()


class Typed(NamedTuple):
    url: str
    supervisor: psutil.Process
    took_s: float
    """Seconds from the start of the process to its ready line."""


@contextlib.contextmanager
def as_typed(folder: Path, *options: str) -> Iterator[Typed]:
    command = [sys.executable, "-m", "octavo.cli.main", "standalone", "--json"]
    command += ["--data", str(folder), "--port-base", "0", *options]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        took_s = time.monotonic() - began
        url = next(one["address"] for one in said["members"] if one["kind"] == "broker")
        yield Typed(url, psutil.Process(process.pid), took_s)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_S)


def owner_of(url: str, topic: str, namespace: str = "public") -> str:
    path = f"{url}/v1/topics/{namespace}/{topic}/partitions/0"
    with urllib.request.urlopen(path, timeout=10) as answer:
        return str(answer.headers["Octavo-Owner"])
