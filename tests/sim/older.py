"""Profile `older`: after the faults, the metadata is turned back to a copy made while they lasted.

X26: a bookie that must know that the copy is older has to say so: if it was started since the copy
was made, if a ledger began on it since and its mark had time, or if it was stopped in an orderly
way. Then the operator puts the newest metadata back, or accepts the older copy. Bookies that cannot
know are not started on the older store (decision 70).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.bookie import node
from octavo.bookie.ledgers.high_water import MetadataOlder
from tests.sim.ledger_audit import LedgerHistory
from tests.sim.metadata_tree import Copy

if TYPE_CHECKING:
    import random

    from tests.sim.cluster import Cluster, SimBookie
    from tests.sim.ledger_load import LedgerLoad
    from tests.sim.ledger_settle import Judge
    from tests.sim.options import SimOptions

OLDER_S_MAX = 400.0
_KNOWS_WITHIN_S = 30.0
_LOOK_S = 0.05
_MARK_S = 5.0
"""A due mark is raised within three of its pauses and this time: a session may have to begin."""
_NEW_LEDGERS = 6


def aged(options: SimOptions, rng: random.Random) -> SimOptions:
    """Adapt the options: time for ledgers, and no disk is lost."""
    return replace(
        options,
        faults={kind: s for kind, s in options.faults.items() if rng.random() < 0.5},
        damage_max=0,
        beyond=False,
        safety_s=rng.choice((0.7, 1.5, 3.0)),
        ledgers=rng.choice((2, 4, 8)),
    )


class OlderMetadata:
    """Makes the copy, turns the metadata back to it, and judges. `over` when it is done."""

    def __init__(self, cluster: Cluster, load: LedgerLoad, judge: Judge) -> None:
        self.over = False
        self.accepted = False
        """The older copy was accepted: later changes are given up, and the seed is over."""
        self._cluster = cluster
        self._load = load
        self._judge = judge
        self._loop = cluster.loop
        self._rng = rng = cluster.loop.stream("older")
        self._accepts = rng.random() < 0.5
        self._live = rng.random() < 0.4
        self._waits = self._live or rng.random() < 0.7
        self._copy: Copy = {}
        self._copied_s = 0.0
        self._known: dict[str, set[int]] = {}
        """Bookie → ledgers that it held when the copy was made."""
        self._records: dict[int, int] = {}
        """Ledger → the version of its record in the copy."""

    def start(self) -> None:
        share = self._rng.choice((0.0, 0.3, 0.9))
        self._loop.world_later(share * self._cluster.options.safety_s, self._make_copy)

    def begin(self) -> None:
        self._loop.world.spawn(self._run(), "older")

    def _make_copy(self) -> None:
        audit = self._cluster.audit
        self._copy = self._cluster.metadata.tree.copy()
        self._copied_s = self._loop.time()
        self._known = {name: set(audit.held[name]) for name in self._cluster.bookies}
        self._records = {
            one.ledger_id: one.version for one in audit.ledgers.values() if not one.deleted
        }
        self._cluster.events.add("metadata", "copied")

    # ------------------------------------------------------------------ the story

    async def _run(self) -> None:
        await self._until(lambda: self._cluster.all_serve)
        if self._accepts:
            await self._judge.close_all()
        for client in self._load.clients:
            client.crash(power=False)
        if self._waits:
            await asyncio.sleep(3 * node._RISE_PAUSE_S + _MARK_S)
        bookies = list(self._cluster.bookies.values())
        knowing = [bookie for bookie in bookies if self._must_know(bookie)]
        for bookie in bookies:
            if not self._live or bookie not in knowing:
                await self._end(bookie, knowing)
        newest = self._turn_back(self._copy)
        for bookie in knowing:
            bookie.held_down = False
            bookie.start()
        await self._all_refuse(knowing)
        if not knowing:
            self._cluster.trace.probe("older.none_must_know")
        if self._accepts and knowing:
            await self._accept()
        else:
            await self._put_back(newest)
        self.over = True

    def _must_know(self, bookie: SimBookie) -> bool:
        if bookie.started_s > self._copied_s:
            return True
        begun = set(self._cluster.audit.held[bookie.name]) - self._known[bookie.name]
        return self._waits and bool(begun)

    async def _end(self, bookie: SimBookie, knowing: list[SimBookie]) -> None:
        bookie.held_down = True
        how = self._rng.choice(("stop", "kill", "power_loss"))
        if how == "stop":
            bookie.stop()
            await self._until(lambda: not bookie.is_alive)
            if self._waits and bookie not in knowing:
                knowing.append(bookie)
        else:
            getattr(bookie, how)()
        self._cluster.events.add("ended", bookie.name, how)

    def _turn_back(self, copy: Copy) -> Copy:
        """Replace the metadata by a copy; return the former metadata."""
        metadata = self._cluster.metadata
        metadata.end_all_sessions()
        newest = metadata.tree.copy()
        metadata.tree.put_back(copy)
        self._cluster.older = copy is self._copy
        self._cluster.trace.fault("metadata.turned_back")
        self._cluster.events.add("metadata", "turned back" if self._cluster.older else "newest")
        return newest

    async def _all_refuse(self, knowing: list[SimBookie]) -> None:
        """X26: each bookie reports that the store is older."""
        until_s = self._loop.time() + _KNOWS_WITHIN_S + 3 * node._RISE_PAUSE_S
        while left := [one.name for one in knowing if not isinstance(one.refused, MetadataOlder)]:
            if self._loop.time() > until_s:
                self._cluster.audit.fail(f"X26 {left} did not refuse metadata that is older")
                return
            await asyncio.sleep(_LOOK_S)
        self._cluster.trace.probe("older.refused", len(knowing))

    async def _put_back(self, newest: Copy) -> None:
        """Put the newest metadata back: no acked entry is lost."""
        self._turn_back(newest)
        await self._start_all()

    async def _accept(self) -> None:
        """Accept the older copy: no id is used twice, and ledgers that it describes truly can be
        read."""
        audit = self._cluster.audit
        kept: list[LedgerHistory] = []
        for history in audit.ledgers.values():
            version = self._records.get(history.ledger_id)
            if version is None:
                history.deleted = True  # given up, so that bookies may remove it
            elif history.is_closed and not history.deleted and version == history.version:
                kept.append(history)
        for bookie in self._cluster.bookies.values():
            bookie.accepts_older = True
        await self._start_all()
        bookie = self._rng.choice(list(self._cluster.bookies.values()))
        bookie.power_loss()  # once is enough: it starts without being told again
        bookie.start()
        await self._until(lambda: self._cluster.all_serve)
        await self._judge.look_at(kept, _NEW_LEDGERS)
        self._cluster.trace.probe("older.accepted")
        self._cluster.trace.probe("older.kept", len(kept))
        self.accepted = True

    async def _start_all(self) -> None:
        for bookie in self._cluster.bookies.values():
            bookie.held_down = False
            bookie.refused = None
            bookie.start()
        await self._until(lambda: all(one.serving for one in self._cluster.bookies.values()))

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
