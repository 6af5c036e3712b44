"""A process dies in a call to its disk, another starts on the same machine, and the power
fails. Data that the second process reads may be in the page cache alone: it must make it
durable, or not rely on it. Every call of a short life is cut short, by SIGKILL before or after
it or by a failing sync; then every crash point of the second life is visited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from octavo.bookie.disk.files import SyncFailed
from tests.sim.disk import SimDisk
from tests.sim.inode import Inode
from tests.sim.loop import SimLoop
from tests.sim.process import Process, ProcessCrashed
from tests.sim.trace import Trace
from tests.support.engine_lab.life import silence, tinier
from tests.support.engine_lab.lives import OPERATIONS, CrashPoint, Life, Recorder

HOWS = ("killed before", "killed after", "sync failed", "sync failed, pages read again")
THEN = ("add", "fence", "lac", "checkpoint", "delete", "compact")


@dataclass(frozen=True)
class Kill:
    at: int
    """The number of the call in its last operation, from 1 on."""
    how: str

    @property
    def is_failed_sync(self) -> bool:
        return self.how.startswith("sync failed")


class Killer(Recorder):
    def __init__(self, life: Life, kill: Kill, process: Process) -> None:
        super().__init__(lambda: life.facts, life.points)
        self._life = life
        self._kill = kill
        self._process = process
        self._calls = 0
        self.reached = ""
        self.is_recording = False

    def before(self, disk: SimDisk, call: str, path: str) -> None:
        if self.reached:
            if self.is_recording:
                super().before(disk, call, path)
        elif call in self._seen and not self._kill.is_failed_sync:
            self._calls += 1
            if self._calls == self._kill.at and self._kill.how == "killed before":
                self._die(f"before {call} {path}")

    def after(self, disk: SimDisk, call: str, path: str) -> None:
        if self.reached:
            if self.is_recording:
                super().after(disk, call, path)
        elif self._calls == self._kill.at and self._kill.how == "killed after":
            self._die(f"after {call} {path}")

    def syncing(self, disk: SimDisk, path: str, inode: Inode | None) -> None:
        if not self.reached and self._kill.is_failed_sync:
            self._calls += 1
            if self._calls == self._kill.at:
                self.reached = f"when the sync of {path} fails"
                if inode is not None:
                    inode.drop(None, disk.note)
                raise SyncFailed(f"{path}: input/output error")

    def _die(self, where: str) -> None:
        self.reached = where
        self._process.crash(power=False)
        raise ProcessCrashed(where)


def second_lives(sequence: Sequence[str]) -> Iterator[tuple[str, list[CrashPoint]]]:
    """For each end of the first process, yield a story and the crash points of the second."""
    seen: set[bytes] = set()
    for how in HOWS:
        at = 1
        while (story := _first_life(sequence, Kill(at, how), "", seen)) is not None:
            yield story
            at += 1
            if story[1]:
                for then in THEN:
                    again = _first_life(sequence, Kill(at - 1, how), then, set())
                    assert again is not None
                    yield again


def _first_life(
    sequence: Sequence[str], kill: Kill, then: str, seen: set[bytes]
) -> tuple[str, list[CrashPoint]] | None:
    """Return the points of the second life, or none when its start is in `seen`; None when the
    last operation has no such call. With a second operation, return only its points."""
    loop = SimLoop(1, trace=Trace())
    life = Life(loop)
    first = Process(loop, "first")
    killer = Killer(life, kill, first)
    life.disk.faults = killer

    async def live() -> None:
        if not sequence:
            killer.record()
        await life.start()
        for number, name in enumerate(sequence):
            if number == len(sequence) - 1:
                killer.record()
            await OPERATIONS[name](life)

    with tinier():
        task = first.spawn(live(), "life")
        loop.run_until(lambda: task.done() or bool(killer.reached), virtual_s_max=100)
        if killer.reached:
            first.crash(power=False)
            life.disk.kill()
            if kill.how == "sync failed, pages read again":
                for inode in life.disk.inodes():
                    inode.forget_cached()
            left = _digest(life)
            if left not in seen:
                seen.add(left)
                loop.run_until_complete(_live_again(life, killer, then))
    loop.close()
    if not killer.reached:
        return None
    # After a failed sync, pages may vanish later, and entries without an ack with them.
    points = [point._replace(sure=not kill.is_failed_sync) for point in life.points]
    return f"{kill.how} {killer.reached}, then {then or 'nothing'}", points


async def _live_again(life: Life, killer: Killer, then: str) -> None:
    killer.is_recording = not then
    await life.start()
    await life.read_all()
    killer.is_recording = True
    if then:
        await OPERATIONS[then](life)
    killer.keep(life.disk, "at the end")
    await silence(life.storage)


def _digest(life: Life) -> bytes:
    disk = life.disk
    numbers = {id(inode): number for number, inode in enumerate(disk.inodes())}
    files = [
        (bytes(i.data), i.size, bytes(i.durable), i.durable_size, i.ops) for i in disk.inodes()
    ]
    names = [(path, numbers[id(inode)]) for path, inode in disk.names.items()]
    durable = [(path, numbers.get(id(inode), -1)) for path, inode in disk.durable_names.items()]
    unsynced = [(op.name, op.old) for ops in disk.unsynced_names.values() for op in ops]
    indexes = [(path, kept.flushed._runs) for path, kept in disk.indexes.kept.items()]
    whole = (files, names, durable, unsynced, indexes, life.facts)
    return blake2b(repr(whole).encode(), digest_size=12).digest()
