"""Runs `octavo pipeline table` again and again, each time in a process that a test may kill.

    python -m tests.support.processes.table_runs SERVICE TOPIC FOLDER

For each line on standard input a child begins to follow. Its pid is printed, then each of its
steps, and when it has ended, its exit code. The libraries are imported once, in the parent, which
has no threads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401  # imported before the fork

from octavo.pipeline.table import TableOptions, table
from octavo.pipeline.table_iceberg import Place
from octavo.pipeline.table_rules import Upkeep


def follow(service: str, topic: str, folder: str) -> None:
    options = TableOptions(
        f"public/{topic}",
        Place(folder, "public", topic),
        follow=True,
        every_s=0.05,
        rows_max=40,
        upkeep=Upkeep(merge_files_min=4, keep_ms=2_000, keep_min=2),
        upkeep_commits=2,
    )

    def step(name: str) -> None:
        print(name, flush=True)

    table(service, options, lambda _: None, step=step)


def main(service: str, topic: str, folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            follow(service, topic, folder)
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
