"""The simulated disk: on demand it forgets unsynced data, fails, fills up, dawdles and rots.

It outlives its processes. Reads see the page cache (every write). `crash` leaves what a power
failure leaves: synced bytes, and any subset of the unsynced sectors (inode.py). Creations, renames
and removals are lost independently, unless their folder was synced. `kill` ends the process alone:
the page cache stays.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from tests.sim.disk_faults import Damage, DiskFaults
from tests.sim.disk_handle import NameOp, SimFile, SimHandle, apply_name, folder_of
from tests.sim.index import SimIndexStore
from tests.sim.inode import SECTOR, Inode
from tests.sim.process import Process, ProcessCrashed


class SimDisk(SimHandle):
    """The disk itself. Used directly it is its own handle, for a machine with one process."""

    def __init__(
        self, capacity: int = 2**40, *, name: str = "disk", rng: random.Random | None = None
    ) -> None:
        self.owed_s = 0.0
        super().__init__(self, name)
        self.name = name
        self.capacity = capacity
        self.rng = rng or random.Random(0)
        self.used = 0
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.unsynced_names: dict[str, list[NameOp]] = {}
        self.folders: dict[str, None] = {"/": None}
        self.locked: dict[str, SimFile] = {}
        self.indexes = SimIndexStore()
        self.handle: SimHandle = self
        self.process: Process | None = None
        self.faults = DiskFaults()
        self.cost_s: dict[str, float] = {}
        """Virtual seconds of a call of each kind; see `slow`."""
        self.kill_chance = 0.5
        """How often the machine survives when a process crashes: its page cache then stays."""
        self.calls = 0
        self.syncs = 0
        self.bytes_written = 0
        self.failed_sync = ""
        """The file or folder whose sync failed in the life of this process."""
        self.counts: Counter[str] = Counter()
        self.on_note: Callable[[str], None] | None = None
        """Called with the kind of every fault that happens."""
        self.on_damage: Callable[[Damage], None] | None = None
        """Called with bytes that are not, or will not be, what was written and synced."""
        self.on_death: Callable[[], object] | None = None

    def note(self, kind: str) -> None:
        self.counts[kind] += 1
        if self.on_note is not None:
            self.on_note(kind)

    def damaged(self, damage: Damage) -> None:
        if self.on_damage is not None:
            self.on_damage(damage)

    # Processes

    def attach(self, process: Process) -> SimHandle:
        self._let_go()
        self.failed_sync = ""
        self.process = process
        self.handle = SimHandle(self, process.name)
        self.handle.spend = process.loop.spend
        process.on_crash.append(self._process_crashed)
        return self.handle

    def _process_crashed(self, process: Process) -> None:
        if process is self.process:
            (self.kill if self.rng.random() < self.kill_chance else self.crash)(self.rng)

    def die(self) -> NoReturn:
        if self.process is not None:
            self.process.crash()
        if self.on_death is not None:
            self.on_death()
        raise ProcessCrashed(f"{self.name}: died in a call to its disk")

    def kill(self, rng: random.Random | None = None) -> None:
        """End the process while the machine survives: written data stays.

        Pages whose sync had failed may be read again as they are on the platter, but not without
        `rng`.
        """
        self._let_go()
        for inode in self.inodes():
            if inode.lost and rng is not None and rng.random() < 0.5:
                inode.forget_cached()
        self.recount()
        self.indexes.crash(rng)
        self.note("disk: kill")

    def crash(self, rng: random.Random | None = None) -> None:
        """Fail the power. Without `rng` only synced data survives."""
        self._let_go()
        for ops in self.unsynced_names.values():
            chance = rng.choice((0.0, 0.5, 1.0)) if rng is not None else 0.0
            for op in ops:
                if rng is not None and rng.random() < chance:
                    apply_name(self.durable_names, op)
                else:
                    self.note("disk: name lost")
        self.unsynced_names.clear()
        self.names = dict(self.durable_names)
        for inode in self.inodes():
            inode.crash(rng, self.note)
        self.recount()
        self.indexes.crash(rng)
        self.note("disk: crash")

    def _let_go(self) -> None:
        """Mark the process's handle dead, and free its locks."""
        self.handle.dead = self.handle is not self
        self.process = None
        self.locked.clear()
        self.owed_s = 0.0

    # Time

    def owe(self, s: float) -> None:
        """Add the cost of a call without a loop."""
        self.owed_s += s

    def take_delay_s(self) -> float:
        owed, self.owed_s = self.owed_s, 0.0
        return owed

    def slow(self, sync_s: float = 0.0, read_s: float = 0.0, write_s: float = 0.0) -> None:
        """Set the cost of calls from now on; 0 ends it."""
        cost_s = {"datasync": sync_s, "sync_directory": sync_s, "pread": read_s, "pwritev": write_s}
        self.cost_s = {call: s for call, s in cost_s.items() if s}
        if self.cost_s:
            self.note("disk: slow")

    # Content

    def inodes(self) -> list[Inode]:
        return list({id(inode): inode for inode in self.names.values()}.values())

    def store(self, inode: Inode, offset: int, data: bytes) -> None:
        if data:
            before = inode.size
            inode.write(offset, data)
            self.used += inode.size - before
            self.bytes_written += len(data)

    def recount(self) -> None:
        self.used = sum(inode.size for inode in self.inodes())

    def list_names(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        length = len(start)
        found = {
            one[length:].split("/", 1)[0]
            for some in (self.names, self.folders)
            for one in some
            if one.startswith(start) and one != start
        }
        return sorted(found)

    def change_name(self, op: NameOp) -> None:
        """Create, rename or unlink; durable only once its folder is synced."""
        before = self.names.get(op.name)
        if before is not None and before is not op.inode:
            self.used -= before.size
        apply_name(self.names, op)
        self.unsynced_names.setdefault(folder_of(op.name), []).append(op)

    # Damage

    def rot(self, rng: random.Random, path: str = "") -> Damage | None:
        """Hurt a byte or a sector of synced data in a file whose path contains `path`."""
        found = [
            (name, inode) for name, inode in self.names.items() if path in name and inode.durable
        ]
        if not found:
            return None
        name, inode = rng.choice(found)
        at = rng.randrange(len(inode.durable))
        if rng.random() < 0.5:
            return self.hurt(rng, name, at, at + 1)
        start = at // SECTOR * SECTOR
        return self.hurt(rng, name, start, min(start + SECTOR, len(inode.durable)))

    def hurt(self, rng: random.Random, path: str, start: int, end: int) -> Damage:
        """Put other bytes there: one flipped bit; zeros, garbage, or bytes that belong
        elsewhere."""
        inode = self.names[path]
        kind = rng.choice(("zeroed sector", "garbled sector", "wrong sector"))
        if end == start + 1:
            kind = "bit rot"
            self.flip(path, start, 1 << rng.randrange(8))
        elif kind == "wrong sector":
            elsewhere = rng.randrange(len(inode.durable)) // SECTOR * SECTOR
            self.overwrite(path, start, inode.pread(end - start, elsewhere))
        else:
            junk = rng.randbytes(end - start)
            self.overwrite(path, start, junk if kind == "garbled sector" else bytes(end - start))
        damage = Damage(kind, self.name, path, start, end)
        self.note(f"disk: {kind}")
        self.damaged(damage)
        return damage

    def overwrite(self, path: str, start: int, data: bytes) -> None:
        """Put other bytes on the platter and into the page cache."""
        inode = self.names[path]
        for held in (inode.durable, inode.data):
            part = data[: max(0, len(held) - start)]
            held[start : start + len(part)] = part

    def flip(self, path: str, at: int, mask: int) -> None:
        """Change bits of one byte, on the platter and in the page cache."""
        inode = self.names[path]
        for data in (inode.durable, inode.data):
            if at < len(data):
                data[at] ^= mask

    def wipe(self, folder: str = "") -> None:
        """Empty `folder`, as when a new disk is mounted there."""
        for held in (
            *(self.names, self.durable_names, self.unsynced_names, self.folders),
            self.indexes.kept,
        ):
            for name in [name for name in held if f"{name}/".startswith(f"{folder}/")]:
                del held[name]
        self.folders["/"] = None
        self.recount()
        self.note("disk: wiped")
        self.damaged(Damage("wiped", self.name, ""))

    def swap(self, other: SimDisk) -> None:
        """Swap the disks of two machines that are both down."""
        for name in ("names", "durable_names", "unsynced_names", "folders", "indexes", "used"):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, theirs)
            setattr(other, name, mine)
        self.note("disk: swapped")
        for disk in (self, other):
            disk.damaged(Damage("swapped", disk.name, ""))
