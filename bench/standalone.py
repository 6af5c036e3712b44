"""A standalone cluster for benchmarks: its bookies and brokers are processes of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from octavo.loop_thread import LoopThread
from octavo.process.spec import ProcessSpec
from octavo.standalone.child import Child
from octavo.standalone.cluster_file import ClusterFile
from octavo.standalone.supervisor import Plan, Supervisor


@contextlib.contextmanager
def standalone(
    folder: Path, make_child: Callable[[str, ProcessSpec, Path], Child] = Child
) -> Iterator[ClusterFile]:
    """Three bookies, two brokers, as `octavo standalone` starts them; all end with the block."""
    thread = LoopThread("standalone")
    supervisor = Supervisor(Plan(folder=folder, port_base=0), make_child=make_child)
    try:
        thread.call(supervisor.start())
        yield supervisor.cluster
    finally:
        thread.call(supervisor.stop())
        thread.stop()
