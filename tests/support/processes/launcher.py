"""Runs a production process with failpoints.

    python -m tests.support.processes.launcher MODULE SPEC FD

MODULE is `octavo.process.bookie` or `octavo.process.broker`. Disk, index and metadata store are
wrapped where its main would open the plain ones. The variable FAILPOINTS names the file that arms
it.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import octavo.bookie.startup.opening
from octavo.bookie.disk.files import RealDisk
from octavo.metadata.record_file import RecordFile
from tests.support.processes.failpoints import Armed
from tests.support.processes.seams import FailDisk, FailIndex, FailStore


def main() -> int:
    module: Any = importlib.import_module(sys.argv.pop(1))
    path = Path(os.environ["FAILPOINTS"])
    armed = Armed(path, path.parent)
    open_store = module.open_store
    wrap_transactions(armed)
    module.open_store = lambda *given, **named: FailStore(open_store(*given, **named), armed)
    if hasattr(module, "RealDisk"):
        opening: Any = octavo.bookie.startup.opening
        open_index = opening.RocksIndex
        module.RealDisk = lambda: FailDisk(RealDisk(), armed)
        opening.RocksIndex = lambda path: FailIndex(open_index(path), armed)
    status: int = module.main()
    return status


def wrap_transactions(armed: Armed) -> None:
    """Make each change of the embedded store a step. Half done, it holds the file's write lock."""
    log = RecordFile._log

    def log_as_a_step(file: RecordFile, path: str, *, names_changed: bool) -> None:
        log(file, path, names_changed=names_changed)
        armed.pass_by("transaction", "half")

    RecordFile._log = log_as_a_step  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    sys.exit(main())
