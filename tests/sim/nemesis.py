"""Injects faults during the safety phase, within the limits of the atlas, and then heals
everything.

Each kind of fault comes at random times. All draws come from one stream, so a seed is one story.
Every fault is an event that a replay shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octavo.bookie.entrylog.format import FILE_HEADER_BYTES
from tests.sim.atlas import Atlas
from tests.sim.cluster import Cluster, SimBookie
from tests.sim.ledger_load import LedgerLoad
from tests.sim.metadata import Cut
from tests.sim.sim_client import SimClient

_AMBUSHES_MAX = 12
_SLOW = frozenset({"damage", "swap", "disk_full", "metadata_away", "power_loss_of_all"})
"""Kinds that are useless in an ambush, or too strong."""


class Nemesis:
    def __init__(self, cluster: Cluster, load: LedgerLoad) -> None:
        self.cluster = cluster
        self.load = load
        self.loop = cluster.loop
        self.rng = cluster.loop.stream("nemesis")
        self.atlas = Atlas(cluster)
        self.over = False
        self._quick = [kind for kind in cluster.options.faults if kind not in _SLOW]
        self._prey: list[str] = []
        """Bookies that the next fault should hit, if it can choose."""
        self._ambushes = 0
        load.on_moment = self._ambush
        for bookie in cluster.bookies.values():
            bookie.disk.on_death = partial(self._start_again, bookie)
        self._later = cluster.loop.world_later
        self._swapped: list[tuple[SimBookie, SimBookie]] = []
        self._kinds: dict[str, Callable[[], str]] = {
            "power_loss": self._power_loss,
            "kill": self._kill,
            "crash_in_call": self._crash_in_call,
            "power_loss_of_all": self._power_loss_of_all,
            "restart": self._restart,
            "pause": self._pause,
            "leaves": self._leaves,
            "crash_client": self._crash_client,
            "cut": self._cut,
            "cut_one_way": self._cut_one_way,
            "clog": self._clog,
            "reset": self._reset,
            "silence": self._silence,
            "sync_fails": self._sync_fails,
            "read_fails": self._read_fails,
            "write_fails": self._write_fails,
            "index_lost": self._index_lost,
            "disk_full": self._disk_full,
            "slow_disk": self._slow_disk,
            "damage": self._damage,
            "swap": self._swap,
            "metadata_away": self._metadata_away,
            "metadata_cut": self._metadata_cut,
            "metadata_reset": self._metadata_reset,
            "session_expires": self._session_expires,
            "busy": self._busy,
            "clock_jumps": partial(cluster.clocks.jump, self.rng),
        }

    def start(self) -> None:
        options, faults = self.cluster.options, self.cluster.metadata.faults
        for name, value in options.metadata.items():
            setattr(faults, name, value)
        network = self.cluster.network.options
        for name, value in options.network.items():
            setattr(network, name, value)
        if options.profile not in ("ledger", "copies"):
            # Leases of messages are short here: on a slower network every message would be given
            # out again, for ever.
            network.latency_s = min(network.latency_s, 0.002)
        for kind, mean_s in options.faults.items():
            self._next(kind, mean_s)

    def _next(self, kind: str, mean_s: float) -> None:
        self.loop.world_later(self.rng.expovariate(1 / mean_s), self._strike, kind, mean_s)

    def _strike(self, kind: str, mean_s: float) -> None:
        self._do(kind)
        self._next(kind, mean_s)

    def _ambush(self, ledger_id: int) -> None:
        """Strike soon at the processes that take part in a delicate moment of a ledger."""
        rng, options = self.rng, self.cluster.options
        left = self._ambushes < _AMBUSHES_MAX
        if self.over or not self._quick or not left or rng.random() >= options.ambush:
            return
        self._ambushes += 1
        soon_s = rng.choice((0.0003, 0.002, 0.01))
        for _ in range(rng.randint(1, 3)):
            kind = rng.choice(self._quick)
            self._later(rng.expovariate(1 / soon_s), self._strike_at, kind, ledger_id)

    def _strike_at(self, kind: str, ledger_id: int) -> None:
        history = self.cluster.audit.ledgers.get(ledger_id)
        if history is not None:
            self._prey = [*history.record.fragments[-1].bookies]
            self.cluster.trace.probe("ambush")
        self._do(kind)
        self._prey = []

    def _do(self, kind: str) -> None:
        if self.over:
            return
        doing = self.load.doing
        what = self._kinds[kind]()
        if what:
            self.cluster.trace.fault(kind)
            for activity in doing:
                self.cluster.trace.probe(f"{kind} × {activity}")
            self.cluster.events.add("FAULT", kind, what)

    def heal(self) -> None:
        self.over = True
        cluster = self.cluster
        cluster.network.heal()
        cluster.network.options.fragment_p = 0.0
        cluster.network.options.reset_p = 0.0
        cluster.metadata.heal()
        cluster.metadata.faults.request_lost = cluster.metadata.faults.reply_lost = 0.0
        for pair in self._swapped:
            self._swap_back(*pair)
        for bookie in cluster.bookies.values():
            bookie.disk.faults.clear()
            bookie.disk.slow()
            bookie.disk.capacity = cluster.options.disk_bytes
            bookie.busy = 0.0
            bookie.held_down = False
            if bookie.process is not None:
                bookie.process.resume()
            bookie.start()
        for client in self.load.clients:
            client.resume()

    # ------------------------------------------------------------------ choosing

    def _bookie(self) -> SimBookie:
        names = self._prey or list(self.cluster.bookies)
        return self.cluster.bookies[self.rng.choice(names)]

    def _pair(self) -> list[str]:
        """Choose two hosts between which something happens: mostly a client and a bookie."""
        clients = [client.name for client in self.load.clients if client.is_alive]
        if clients and (self._prey or self.rng.random() < 0.5):
            pair = [self.rng.choice(clients), self._bookie().name]
            self.rng.shuffle(pair)
            return pair
        return self.rng.sample(self._hosts(), 2)

    def _hosts(self) -> list[str]:
        return [*self.cluster.bookies, *(client.name for client in self.load.clients)]

    def _some_s(self) -> float:
        """Draw a duration: mostly short, sometimes past timeouts and sessions."""
        return self.rng.choice((0.02, 0.1, 0.4, 1.0, 2.5)) * self.rng.uniform(0.5, 1.5)

    # ------------------------------------------------------------------ processes

    def _start_again(self, bookie: SimBookie) -> str:
        bookie.start_later(self.rng.choice((0.0, 0.05, 0.3, 1.5)) * self.rng.uniform(0.5, 1.5))
        return bookie.name

    def _power_loss(self) -> str:
        """Fail the power at any time, or while a write is on its way to the disk."""
        bookie = self._bookie()
        if bookie.is_alive and self.rng.random() < 0.5:
            bookie.disk.faults.crash_in_sync(self.rng, self.rng.choice(("", "/j")))
            return f"{bookie.name} in its next sync"
        bookie.power_loss()
        self._start_again(bookie)
        return bookie.name

    def _kill(self) -> str:
        bookie = self._bookie()
        bookie.kill()
        return self._start_again(bookie)

    def _crash_in_call(self) -> str:
        """Fail the power before or after one of the next operations of a disk."""
        bookie = self._bookie()
        faults = bookie.disk.faults
        arm = faults.crash_before if self.rng.random() < 0.5 else faults.crash_after
        path = self.rng.choice(("", "", "/j", "/j", "/l", ".mark", ".state", ".log"))
        arm(self.rng, path, skip=int(self.rng.expovariate(1 / 3)))
        return f"{bookie.name} {path}"

    def _power_loss_of_all(self) -> str:
        for bookie in self.cluster.bookies.values():
            bookie.power_loss()
            self._start_again(bookie)
        return "all bookies"

    def _restart(self) -> str:
        bookie = self._bookie()
        if not bookie.serving:
            return ""
        if self.rng.random() < 0.5:
            bookie.limits = self.cluster.options.other_limits(self.rng).bookie
        bookie.stop()
        return bookie.name

    def _leaves(self) -> str:
        """Stop in an orderly way, for longer than a lost bookie is waited for."""
        bookie, s = self._bookie(), self.rng.uniform(0.5, 2.5)
        if not bookie.serving:
            return ""
        bookie.held_down = True
        bookie.stop()
        self._later(s, self._comes_back, bookie)
        return f"{bookie.name} for {s:.3f} s"

    def _comes_back(self, bookie: SimBookie) -> None:
        bookie.held_down = False
        bookie.start()

    def _pause(self) -> str:
        s = self._some_s()
        if self.rng.random() < 0.6:
            bookie = self._bookie()
            if bookie.process is not None:
                bookie.process.pause(s)
            return f"{bookie.name} for {s:.3f} s"
        if not self.load.clients:
            return ""
        client = self.rng.choice(self.load.clients)
        if client.process is not None:
            client.process.pause(s)
        return f"{client.name} for {s:.3f} s"

    def _crash_client(self) -> str:
        if not self.load.clients:
            return ""
        client = self.rng.choice(self.load.clients)
        client.crash(power=self.rng.random() < 0.5)
        self._later(self.rng.uniform(0.0, 0.4), self._start_client, client)
        return client.name

    def _start_client(self, client: SimClient) -> None:
        if not self.over and not client.is_alive:
            client.start()

    # ------------------------------------------------------------------ network

    def _cut(self, *, one_way: bool = False) -> str:
        network, rng, s = self.cluster.network, self.rng, self._some_s()
        if rng.random() < 0.4:
            name = rng.choice(self._hosts())
            for other in self._hosts():
                if other != name:
                    network.cut(name, other, one_way=one_way)
            self._later(s, self._mend, name, None)
            return f"{name} from all for {s:.3f} s"
        a, b = self._pair()
        network.cut(a, b, one_way=one_way)
        self._later(s, self._mend, a, b)
        return f"{a} → {b} for {s:.3f} s"

    def _cut_one_way(self) -> str:
        return self._cut(one_way=True)

    def _mend(self, a: str, b: str | None) -> None:
        self.cluster.network.heal(a, b)

    def _clog(self) -> str:
        a, b = self._pair()
        s = self._some_s()
        self.cluster.network.clog(a, b, s)
        return f"{a} → {b} for {s:.3f} s"

    def _reset(self) -> str:
        a = self._bookie().name if self._prey else self.rng.choice(self._hosts())
        count = self.cluster.network.reset(a, share=self.rng.choice((0.3, 1.0)))
        return f"{a}: {count} connections" if count else ""

    def _silence(self) -> str:
        a, b = self._pair()
        return f"{a} → {b}" if self.cluster.network.silence(a, b) else ""

    # ------------------------------------------------------------------ disks

    def _sync_fails(self) -> str:
        bookie = self._bookie()
        path = self.rng.choice(("", "/j", "/l"))
        bookie.disk.faults.fail_sync(self.rng, path, skip=self.rng.randrange(4))
        if self.rng.random() < 0.4:  # a disk that begins to fail often takes its machine with it
            self._later(self.rng.expovariate(1 / 0.1), self._power_loss_of, bookie)
        return f"{bookie.name} {path}"

    def _power_loss_of(self, bookie: SimBookie) -> None:
        if not self.over:
            bookie.power_loss()
            self._start_again(bookie)

    def _read_fails(self) -> str:
        bookie = self._bookie()
        bookie.disk.faults.fail_read(self.rng, skip=self.rng.randrange(3), times=1)
        return bookie.name

    def _write_fails(self) -> str:
        bookie = self._bookie()
        bookie.disk.faults.fail_write(self.rng, skip=self.rng.randrange(5))
        return bookie.name

    def _index_lost(self) -> str:
        """Lose an index: rebuilding takes time, and no entry is lost."""
        bookie = self._bookie()
        bookie.power_loss()
        bookie.disk.indexes.kept.clear()
        return self._start_again(bookie)

    def _disk_full(self) -> str:
        bookie, s = self._bookie(), 0.2 + self._some_s()
        disk = bookie.disk
        if self.rng.random() < 0.4:
            disk.faults.fill(self.rng, skip=self.rng.randrange(5), times=self.rng.randint(1, 3))
            return f"{bookie.name} once"
        disk.capacity = disk.used + self.rng.choice((0, 5_000, 30_000, 35_000))
        self._later(s, self._give_space, bookie)
        return f"{bookie.name} for {s:.3f} s"

    def _give_space(self, bookie: SimBookie) -> None:
        bookie.disk.capacity = self.cluster.options.disk_bytes

    def _slow_disk(self) -> str:
        bookie, s = self._bookie(), self._some_s()
        bookie.disk.slow(sync_s=self.rng.choice((0.005, 0.05, 0.5)), read_s=0.002)
        self._later(s, bookie.disk.slow)
        return f"{bookie.name} for {s:.3f} s"

    def _damage(self) -> str:
        """Lose a copy for good, as far as the atlas allows."""
        bookie = self._bookie()
        if not self.atlas.may_damage(bookie):
            return ""
        if self.rng.random() < 0.4:
            folder = self.rng.choice(("", "", "", *bookie.config().directories))
            self.atlas.damaged(bookie, "wiped")
            bookie.power_loss()
            bookie.disk.wipe(folder)
            if folder:
                self.cluster.trace.probe("damage.folder_lost")
            else:
                self.atlas.rot_is_gone(bookie)
            if self.rng.random() < 0.7:  # replacing a disk mostly takes longer than a session
                self.cluster.metadata.expire(bookie.name)
            self._start_again(bookie)
            return f"{bookie.name} wiped {folder}"
        journal = self.rng.choice(self.cluster.options.journal_directories)
        path = self.rng.choice((f"{journal}/", "/l/", "/l/", ".log"))
        place = self.atlas.rot_at(bookie, path, self.rng)
        if place is None:
            return ""
        if place[0].endswith(".log") and self.rng.random() < 0.3:
            at = self.rng.randrange(FILE_HEADER_BYTES)  # the header, on which a whole log depends
            place = (place[0], at, at + 1)
        damage = bookie.disk.hurt(self.rng, *place)
        self.atlas.damaged(bookie, "rotten")
        return f"{bookie.name} {damage.kind} in {damage.path} at {damage.start}…{damage.end}"

    def _swap(self) -> str:
        """Swap the disks of two machines for a while."""
        one, other = self.rng.sample(list(self.cluster.bookies.values()), 2)
        if self._swapped or not (self.atlas.is_whole(one) and self.atlas.is_whole(other)):
            return ""
        for bookie in (one, other):
            bookie.power_loss()
            self.atlas.damaged(bookie, "swapped")
        one.disk.swap(other.disk)
        self._swapped.append((one, other))
        for bookie in (one, other):
            self._start_again(bookie)
        return f"{one.name} and {other.name}"

    def _swap_back(self, one: SimBookie, other: SimBookie) -> None:
        for bookie in (one, other):
            bookie.power_loss()
        one.disk.swap(other.disk)
        for bookie in (one, other):
            self.atlas.whole_again(bookie)
            bookie.refused = None

    # ------------------------------------------------------------------ metadata

    def _metadata_away(self) -> str:
        s = self._some_s()
        self.cluster.metadata.go_away()
        self._later(s, self.cluster.metadata.come_back)
        return f"for {s:.3f} s"

    def _metadata_cut(self) -> str:
        name, s = self.rng.choice(self._hosts()), self._some_s()
        cut = self.rng.choice((Cut.BOTH, Cut.BOTH, Cut.REQUESTS, Cut.REPLIES))
        self.cluster.metadata.partition(name, cut)
        self._later(s, self.cluster.metadata.heal, name)
        return f"{name} {cut.name} for {s:.3f} s"

    def _metadata_reset(self) -> str:
        name = self.rng.choice(self._hosts())
        self.cluster.metadata.reset(name)
        return name

    def _session_expires(self) -> str:
        name = self.rng.choice(self._hosts())
        self.cluster.metadata.expire(name)
        return name

    # ------------------------------------------------------------------ load

    def _busy(self) -> str:
        bookie, s = self._bookie(), self._some_s()
        bookie.busy = self.rng.choice((0.3, 0.8, 1.0))
        self._later(s, setattr, bookie, "busy", 0.0)
        return f"{bookie.name} {bookie.busy} for {s:.3f} s"
