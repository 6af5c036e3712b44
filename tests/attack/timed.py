"""Runs a cluster whose processes report how long their loops stood still. `python -m
tests.attack.timed standalone …` is the command `octavo` with timed children; `… MODULE SPEC FD`
is such a child. It writes each turn above `TOLD_S` of processor time: end (CLOCK_MONOTONIC),
length, share of full garbage collections."""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from octavo.standalone.child import Child
from tests.support.loop_time import LoopTime

TOLD_S = 0.02
FOLDER = "turns"


class Turn(NamedTuple):
    ended_s: float
    process: str
    processor_s: float
    collected_s: float

    def __str__(self) -> str:
        took_ms, collected_ms = self.processor_s * 1000, self.collected_s * 1000
        told = f"a turn of {self.process} took {took_ms:.0f} ms of processor time"
        return f"{told}, {collected_ms:.0f} of it in collections" if self.collected_s else told


class Turns:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def longest(self, since_s: float, kind: str, *, collections: bool = True) -> Turn | None:
        """Return the longest turn since then of processes of this kind, with or without the time
        of `collections`."""

        def length(turn: Turn) -> float:
            return turn.processor_s - (0.0 if collections else turn.collected_s)

        return max(self._since(since_s, kind), key=length, default=None)

    def _since(self, since_s: float, kind: str) -> Iterator[Turn]:
        for path in self._folder.glob(f"{kind}-*"):
            data = path.read_bytes()
            for line in data[: data.rfind(b"\n") + 1].splitlines():
                ended_s, *took_s = json.loads(line)
                if ended_s >= since_s:
                    yield Turn(ended_s, path.name, *took_s)


class _Collections:
    def __init__(self) -> None:
        self._began_s = self._took_s = 0.0
        gc.callbacks.append(self._told)

    def _told(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            if phase == "start":
                self._began_s = time.thread_time()
            else:
                self._took_s += time.thread_time() - self._began_s

    def take(self) -> float:
        took_s, self._took_s = self._took_s, 0.0
        return took_s


def _run_child() -> int:
    module: Any = importlib.import_module(sys.argv.pop(1))
    spec = Path(sys.argv[1])
    folder = spec.parent.parent / FOLDER
    folder.mkdir(exist_ok=True)
    [name] = [one for one in ("serve_broker", "serve_bookie") if hasattr(module, one)]
    serve = getattr(module, name)

    with open(folder / spec.stem, "ab", buffering=0) as written:
        collections = _Collections()

        def tell(processor_s: float) -> None:
            collected_s = collections.take()
            if processor_s > TOLD_S:
                told = [time.monotonic(), processor_s, round(collected_s, 6)]
                written.write(json.dumps(told).encode() + b"\n")

        async def timed(*given: Any) -> None:
            async with LoopTime(tell):
                await serve(*given)

        setattr(module, name, timed)
        status: int = module.main()
        return status


def _run_command() -> int:
    from octavo.cli.main import main

    def command(child: Child) -> list[str]:
        return [sys.executable, "-m", __spec__.name, f"octavo.process.{child.kind}"]

    Child.command = property(command)  # type: ignore[assignment, method-assign]
    main()
    return 0


if __name__ == "__main__":
    sys.exit(_run_child() if sys.argv[1].startswith("octavo.process.") else _run_command())
