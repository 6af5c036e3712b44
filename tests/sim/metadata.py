"""The simulated metadata store: one server, its sessions, and the faults of its network.

Like ZooKeeper it never lies: one linear history, sessions that end after silence, and ephemeral
records that end with them. All else may fail: messages are lost or late, a process is cut off in
one direction or both, its server lags, watches are late, the whole store is away.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag
from typing import TYPE_CHECKING

from octavo.metadata.store import SessionExpired
from octavo.metadata.watching import WatchKey
from tests.sim.metadata_store import SimMetadataStore
from tests.sim.metadata_tree import Author, Change, Tree

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop
    from tests.sim.process import Process
    from tests.sim.trace import Trace

SESSION_TIMEOUT_MS = 6000
_TICK_S = 0.5
"""Sessions end at most this long after their time, as with a server that counts in ticks."""


class Cut(Flag):
    NONE = 0
    REQUESTS = 1
    REPLIES = 2
    BOTH = 3


@dataclass(slots=True)
class MetadataFaults:
    """Fault rates for all processes. The nemesis changes them."""

    delay_ms: float = 1.0
    """Mean of one way; sometimes ten times as much."""
    request_lost: float = 0.0
    """Share of the calls that never arrive and raise `MetadataUnavailable` some time later."""
    reply_lost: float = 0.0
    """Share of the calls that take effect and raise `MetadataUnavailable` all the same."""
    watch_delay_ms: float = 2.0
    false_alarms: float = 0.0
    """Share of new watches that are called once without a change."""
    lag_ms: float = 0.0
    """How far a server may be behind the others; each store draws its lag below it."""


class Session:
    __slots__ = ("connection", "ended", "ends_s", "id", "store", "timeout_s")

    def __init__(
        self, number: int, store: Author, timeout_s: float, ended: Callable[[int], None]
    ) -> None:
        self.id = number
        self.store = store
        self.timeout_s = timeout_s
        self.ended = ended
        self.ends_s = 0.0
        self.connection = 0
        """Requests of an older connection are refused: the session has moved."""


class SimMetadata:
    """The server. Make it outside every process, so that its work belongs to none."""

    def __init__(self, loop: SimLoop, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.rng = loop.stream("metadata")
        self.context = contextvars.Context()
        self.faults = MetadataFaults()
        self.tree = Tree(loop.time, self._changed)
        self.observers: list[Callable[[Change], None]] = []
        self._sessions: dict[int, Session] = {}
        self._session_count = 0
        self._store_count = 0
        self._stores: list[SimMetadataStore] = []
        self._cuts: dict[str, Cut] = {}
        self._deaf_until_s: dict[str, float] = {}
        self._slow: dict[str, tuple[float, float]] = {}
        self._writes_from_s = 0.0
        self._away = False
        self.troubled = False
        """Whether any process is cut off. If not, `hears` and `is_heard` need not be called."""
        self.random = self.rng.random
        self.resends_reads = self.rng.random() < 0.5
        """Whether stores resend reads after a lost connection, as a ZooKeeper store does, or give
        them up, as the embedded store does. The interface allows both."""

    @property
    def history(self) -> list[Change]:
        return self.tree.history

    def store(
        self,
        process: Process | None = None,
        *,
        name: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        call_timeout_ms: int = 10_000,
    ) -> SimMetadataStore:
        """Make a store for one process; start it in that process. A restarted process needs a new
        one."""
        self._store_count += 1
        made = SimMetadataStore(
            self,
            name or (process.name if process is not None else f"store-{self._store_count}"),
            self._store_count,
            session_timeout_ms=session_timeout_ms,
            call_timeout_ms=call_timeout_ms,
        )
        self._stores.append(made)
        if process is not None:
            process.on_crash.append(lambda _: self.forget(made))
        return made

    def changed_ms(self, path: str, seq: int) -> int | None:
        """Return when the record was changed last by the server's clock. The embedded store has no
        clock."""
        if not self.resends_reads:
            return None
        return self.loop.epoch_ms + int(self.tree.changed_s(path, seq) * 1000)

    # -- faults

    def partition(self, name: str, cut: Cut = Cut.BOTH) -> None:
        """Cut the process `name` off; its session ends when that lasts too long."""
        self.trace.fault(f"metadata.cut_{(cut.name or 'none').lower()}")
        self._cuts[name] = cut
        self.troubled = True

    def heal(self, name: str | None = None) -> None:
        """Undo the partition of a process or of all, and bring the store back if it is away."""
        if name is not None:
            self._cuts.pop(name, None)
            self.troubled = bool(self._cuts) or self._away
            return
        self._cuts.clear()
        self._slow.clear()
        self._writes_from_s = 0.0
        self.come_back()
        self.troubled = False

    def deafen(self, name: str, s: float) -> None:
        """Hold back the watches of the process `name` for `s` seconds; then call all that were
        due."""
        self.trace.fault("metadata.deaf")
        self._deaf_until_s[name] = max(self._deaf_until_s.get(name, 0.0), self.loop.now + s)

    def slow_down(self, name: str, extra_s: float, s: float) -> None:
        """Delay each call of the process `name` by `extra_s`, for `s` seconds."""
        self.trace.fault("metadata.slow")
        self._slow[name] = extra_s, self.loop.now + s

    def hold_writes(self, s: float) -> None:
        """Hold back all writes for `s` seconds, while reads and sessions continue.

        An embedded store behaves so while another process has its lock. A store like ZooKeeper
        keeps the order of a process's calls instead.
        """
        assert not self.resends_reads
        self.trace.fault("metadata.writes_held")
        self._writes_from_s = max(self._writes_from_s, self.loop.now + s)

    def expire(self, name: str) -> None:
        """End the sessions of the process `name` at once, without telling it."""
        self.trace.fault("metadata.expire")
        for session in [s for s in self._sessions.values() if s.store[0] == name]:
            self._end(session)

    def end_all_sessions(self) -> None:
        for session in list(self._sessions.values()):
            self._end(session)

    def has_session(self, author: Author) -> bool:
        return any(session.store == author for session in self._sessions.values())

    def reset(self, name: str) -> None:
        """Cut the connection of the process `name`; calls in progress have an unknown outcome."""
        self.trace.fault("metadata.reset")
        for store in self._stores:
            if store.name == name:
                store.line.reset()

    def go_away(self) -> None:
        """Put the whole store out of reach (no quorum); no session ends meanwhile."""
        self.trace.fault("metadata.away")
        self._away = self.troubled = True

    def come_back(self) -> None:
        """Bring the store back; every session has its whole time from now."""
        if self._away:
            self._away = False
            self.troubled = bool(self._cuts)
            for session in self._sessions.values():
                session.ends_s = max(session.ends_s, self.loop.now + session.timeout_s)

    def forget(self, store: SimMetadataStore) -> None:
        """Call no watch of `store` any more: it is closed, or its process is dead."""
        if store in self._stores:
            self._stores.remove(store)

    # -- for the stores

    def hears(self, name: str) -> bool:
        return not self._away and not self._cuts.get(name, Cut.NONE) & Cut.REQUESTS

    def is_heard(self, name: str) -> bool:
        return not self._away and not self._cuts.get(name, Cut.NONE) & Cut.REPLIES

    def deaf_s(self, name: str) -> float:
        return max(0.0, self._deaf_until_s.get(name, 0.0) - self.loop.now)

    def slow_s(self, name: str) -> float:
        """How much longer than usual a request of `name` takes now."""
        extra_s, until_s = self._slow.get(name, (0.0, 0.0))
        return extra_s if self.loop.now < until_s else 0.0

    def writes_wait_s(self) -> float:
        return max(0.0, self._writes_from_s - self.loop.now)

    def delay_s(self) -> float:
        random = self.random
        scale = 10.0 if random() > 0.98 else 2.0
        return self.faults.delay_ms * scale * random() / 1000

    def open_session(self, store: Author, timeout_s: float, ended: Callable[[int], None]) -> int:
        """Open a session for a process; `ended` is called when the server ends it."""
        self._session_count += 1
        session = Session(self._session_count, store, timeout_s, ended)
        self._sessions[session.id] = session
        session.ends_s = self.loop.now + session.timeout_s
        self._wait_for_end(session)
        return session.id

    def session(self, number: int) -> Session:
        session = self._sessions.get(number)
        if session is None:
            raise SessionExpired(f"metadata session {number} is over")
        return session

    def touch(self, session: Session) -> None:
        ends_s = self.loop.now + session.timeout_s
        if ends_s > session.ends_s:
            session.ends_s = ends_s

    def close_session(self, number: int) -> None:
        """End the session at the process's wish, without telling the process."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self.tree.end_session(number, by=session.store)

    # -- within

    def _wait_for_end(self, session: Session) -> None:
        when = session.ends_s + self.rng.random() * _TICK_S
        self.loop.call_at(when, self._end_if_due, session, context=self.context)

    def _end_if_due(self, session: Session) -> None:
        if session.id not in self._sessions:
            return
        if self._away or session.ends_s > self.loop.now:
            session.ends_s = max(session.ends_s, self.loop.now + 0.01)
            self._wait_for_end(session)
            return
        self.trace.probe("metadata.session_timed_out")
        self._end(session)

    def _end(self, session: Session) -> None:
        del self._sessions[session.id]
        self.tree.end_session(session.id, by=session.store)
        session.ended(session.id)

    def _changed(self, change: Change, keys: tuple[WatchKey, ...]) -> None:
        self.trace.fact(change.path, change.version)
        self.trace.deliver(change.value or b"")
        if self.trace.verbose:
            self.trace.say(change.time_s, change.by, f"metadata {change.path} v{change.version}")
        for store in self._stores:
            store.maybe_alarm(keys, change.seq)
        for observer in self.observers:
            observer(change)
