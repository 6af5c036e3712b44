"""Kills in quick succession: the processes of a cluster, at random times and at failpoints. A
cycle is a kill −9 and the following start. Two processes at a time are in trouble, and
sometimes all."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from octavo.process.spec import ProcessSpec
from octavo.standalone.child import Child, ChildFailed
from octavo.standalone.supervisor import Plan, Supervisor
from tests.support.processes import failpoints
from tests.support.processes.chaos import SESSION_MS, SMALL_BOOKIE
from tests.support.processes.failpoints import (
    BOOKIE_FAILPOINTS,
    BROKER_FAILPOINTS,
    PROVOKED_BY,
    START_STEPS,
    Failpoint,
    Trigger,
)

ROOT = Path(__file__).resolve().parents[3]
TINY_BOOKIE = {
    **SMALL_BOOKIE,
    "flush_interval_ms": 150,
    "write_cache_bytes_max": 64 * 1024,
    "journal_file_bytes_max": 96 * 1024,
    "journal_preallocate_bytes": 32 * 1024,
    "entry_log_bytes_max": 128 * 1024,
    "gc_interval_ms": 500,
    "gc_quarantine_ms": 1000,
    "gc_minor_interval_ms": 1000,
    "gc_major_interval_ms": 2000,
}
"""Every persist step comes several times a second; deleted ledgers are collected soon."""
AT_ONCE = 2
FAILPOINT_TIMEOUT_S = 10.0
"""An armed process that has not reached its step by then is killed directly."""
AFTER_START_S = 1.0
"""How long a process that was armed before its start may take to reach its step."""
FREQUENT = ("journal.write", "journal.datasync")
KINDS = {"KILL": 8, "FAILPOINT": 14, "EVERYTHING": 1, "TERM": 1, "STOP": 1, "STOP_AT": 2}


class LaunchedChild(Child):
    def __init__(self, kind: str, spec: ProcessSpec, folder: Path) -> None:
        super().__init__(kind, spec, folder)
        self._arm_path = folder / "failpoints" / spec.name
        self._arm_path.parent.mkdir(parents=True, exist_ok=True)
        self.trigger = Trigger(self._arm_path)

    @property
    def command(self) -> list[str]:
        return [
            *super().command[:2],
            "tests.support.processes.launcher",
            f"octavo.process.{self.kind}",
        ]

    @property
    def environment(self) -> dict[str, str]:
        own = {"FAILPOINTS": str(self._arm_path), "PYTHONPATH": str(ROOT)}
        return {**super().environment, **own}


class LaunchedSupervisor(Supervisor):
    def __init__(self, plan: Plan) -> None:
        self.launched: dict[str, LaunchedChild] = {}
        super().__init__(plan, make_child=self._launched)

    def _launched(self, kind: str, spec: ProcessSpec, folder: Path) -> LaunchedChild:
        child = self.launched[spec.name] = LaunchedChild(kind, spec, folder)
        return child

    @property
    def failpoint_folder(self) -> Path:
        return self.plan.folder / "failpoints"

    async def until_dead(self, name: str, timeout_s: float = 60.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self.is_dead(name):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    def is_dead(self, name: str) -> bool:
        member = self.cluster.member(name)
        assert member is not None
        return member.state == "dead"


class Killer:
    def __init__(
        self,
        supervisor: LaunchedSupervisor,
        rng: random.Random,
        cycles: int,
        kinds: Mapping[str, int] = KINDS,
    ) -> None:
        self._supervisor = supervisor
        self._rng = rng
        self._cycles = cycles
        self._kinds = dict(kinds)
        self._busy: set[str] = set()
        self._tried: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.starts_s: defaultdict[str, list[float]] = defaultdict(list)
        self.log: list[str] = []

    @property
    def done(self) -> int:
        return self.kills.total()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            tasks: set[asyncio.Task[None]] = set()
            while self.done < self._cycles:
                if tasks and self.done + len(tasks) >= self._cycles:
                    await asyncio.wait(tasks)  # not every trouble is a kill
                    tasks.clear()
                    continue
                (kind,) = self._rng.choices([*self._kinds], [*self._kinds.values()])
                if kind == "EVERYTHING":
                    if tasks:
                        await asyncio.wait(tasks)
                    await self._everything()
                else:
                    name = self._rng.choice(self._idle())
                    self._busy.add(name)
                    task = group.create_task(self._one(name, kind))
                    tasks.add(task)
                    if len(tasks) >= AT_ONCE:
                        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                tasks = {task for task in tasks if not task.done()}
                await asyncio.sleep(self._rng.uniform(0, 0.2))

    def _idle(self) -> list[str]:
        return sorted(set(self._supervisor.launched) - self._busy)

    async def _everything(self) -> None:
        names = sorted(self._supervisor.launched)
        self._note("EVERYTHING")
        for name in names:
            self._supervisor.signal(name, signal.SIGKILL)
        for name in names:
            assert await self._supervisor.until_dead(name)
            self.kills["all at once"] += 1
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._start(name))

    async def _one(self, name: str, kind: str) -> None:
        try:
            if kind == "STOP":
                await self._stopped(name)
            elif kind == "STOP_AT":
                await self._stopped_at_failpoint(name)
            else:
                await self._end(name, kind)
                await self._start(name)
        finally:
            self._busy.discard(name)

    async def _end(self, name: str, kind: str) -> None:
        supervisor = self._supervisor
        how = "at a random time"
        if kind == "TERM":
            self._note(f"TERM {name}")
            supervisor.signal(name, signal.SIGTERM)
            assert await supervisor.until_dead(name), f"{name} does not end"
            return
        if kind == "FAILPOINT":
            if await self._ends_at_failpoint(name, self._draw(name)):
                self.kills["at a failpoint"] += 1
                return
            how = "for not reaching its failpoint"
        await self._kill(name, how)

    async def _kill(self, name: str, how: str) -> None:
        self._note(f"KILL {name}, {how}")
        self._supervisor.signal(name, signal.SIGKILL)
        assert await self._supervisor.until_dead(name)
        self.kills[how] += 1

    async def _ends_at_failpoint(self, name: str, failpoint: Failpoint) -> bool:
        self._note(f"{name} at {failpoint}")
        supervisor = self._supervisor
        trigger = supervisor.launched[name].trigger
        trigger.arm(failpoint)
        other = await self._knock_down(PROVOKED_BY.get(failpoint.step))
        try:
            if await supervisor.until_dead(name, FAILPOINT_TIMEOUT_S):
                return True
            trigger.disarm()  # it may be dying right now
            return await supervisor.until_dead(name, 0.1)
        finally:
            if other is not None:
                await self._start(other)
                self._busy.discard(other)

    async def _knock_down(self, kind: str | None) -> str | None:
        """Kill a healthy process of `kind`, so that a broker has to react."""
        idle = [name for name in self._idle() if kind is not None and name.startswith(kind)]
        if not idle:
            return None
        other = self._rng.choice(idle)
        self._busy.add(other)
        await self._kill(other, "to make another one act")
        return other

    async def _start(self, name: str) -> None:
        """Start it. Sometimes a failpoint kills it while it starts; then start it again."""
        supervisor = self._supervisor
        trigger = supervisor.launched[name].trigger
        while True:
            armed = self.done < self._cycles and self._rng.random() < 0.3
            if armed:
                failpoint = self._draw(name, starting=True)._replace(count=1)
                self._note(f"{name} starting, at {failpoint}")
                trigger.arm(failpoint)
            started = time.monotonic()
            try:
                await supervisor.resume(name)
                self.starts_s[name.partition("-")[0]].append(time.monotonic() - started)
            except ChildFailed as error:
                if not armed or trigger.is_armed:
                    raise
                self._note(f"{name}: {error}")
                self.kills["at a failpoint while it started"] += 1
                continue
            if armed:
                fired = await supervisor.until_dead(name, AFTER_START_S)
                trigger.disarm()
                if fired or await supervisor.until_dead(name, 0.1):
                    self.kills["at a failpoint"] += 1
                    continue
            return

    def _draw(self, name: str, *, starting: bool = False) -> Failpoint:
        every = BOOKIE_FAILPOINTS if name.startswith("bookie") else BROKER_FAILPOINTS
        known = [one for one in every if starting or one.partition(":")[0] not in START_STEPS]
        if starting:
            known = [one for one in known if one.partition(":")[0] not in PROVOKED_BY]
        hit = self.hits()
        worth = {one: 3 * hit[one] + self._tried[one] for one in known}
        least = min(worth.values())
        chosen = self._rng.choice([one for one in known if worth[one] == least])
        self._tried[chosen] += 1
        step, phase = chosen.split(":")
        most = 1 if self._tried[chosen] > 1 + hit[chosen] else 100 if step in FREQUENT else 3
        return Failpoint(step, phase, self._rng.randint(1, most))

    async def _stopped(self, name: str) -> None:
        self._note(f"STOP {name}")
        self._supervisor.signal(name, signal.SIGSTOP)
        await self._past_session(name)

    async def _stopped_at_failpoint(self, name: str) -> None:
        """Let it stop itself at a persist step and sleep past its session."""
        failpoint = self._draw(name)._replace(action="stop")
        self._note(f"{name} at {failpoint}")
        child = self._supervisor.launched[name]
        child.trigger.arm(failpoint)
        deadline = time.monotonic() + FAILPOINT_TIMEOUT_S
        while not is_stopped(child.pid) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        child.trigger.disarm()
        await asyncio.sleep(0.05)  # it may be falling asleep right now
        if is_stopped(child.pid):
            await self._past_session(name)

    async def _past_session(self, name: str) -> None:
        await asyncio.sleep(SESSION_MS / 1000 * self._rng.uniform(1.1, 1.8))
        self._supervisor.signal(name, signal.SIGCONT)
        self.stops += 1

    stops = 0

    def _note(self, what: str) -> None:
        self.log.append(f"{self.done}: {what}")

    def hits(self) -> Counter[str]:
        return failpoints.hits(self._supervisor.failpoint_folder)


def is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
