"""Runs a production process with failpoints: `python -m tests.process.launcher MODULE SPEC FD`.

MODULE is `octavo.process.bookie` or `octavo.process.broker`; disk, index and metadata store are
wrapped where its main would open the plain ones. The file that arms it is named by FAILPOINTS.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import bookie.recover
from bookie.disk import RealDisk
from tests.process.failpoints import Armed
from tests.process.seams import FailDisk, FailIndex, FailStore


def main() -> int:
    """Wrap the seams, then be that process."""
    module: Any = importlib.import_module(sys.argv.pop(1))
    path = Path(os.environ["FAILPOINTS"])
    armed = Armed(path, path.parent)
    open_store = module.open_store
    module.open_store = lambda *given, **named: FailStore(open_store(*given, **named), armed)
    if hasattr(module, "RealDisk"):
        open_index: Any = bookie.recover.RocksIndex
        module.RealDisk = lambda: FailDisk(RealDisk(), armed)
        bookie.recover.RocksIndex = lambda path: FailIndex(open_index(path), armed)  # type: ignore[misc,assignment]
    status: int = module.main()
    return status


if __name__ == "__main__":
    sys.exit(main())
