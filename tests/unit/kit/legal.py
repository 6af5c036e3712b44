"""Random histories in which every promise was kept. Models of a topic and of a ledger take
small steps: lost answers, readers at any place, lost acks, subscriptions that return to
unacked messages."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.support.kit.history import Call, History, Operation

FATES = ("ok", "applied", "never", "fail")
"""The fate of a call: `applied` and `never` are both unknown to its caller."""


@dataclass(slots=True)
class Group:
    acked: set[int] = field(default_factory=set)
    mark: int = 0
    fresh: int = 0
    again: deque[int] = field(default_factory=deque)

    def ack(self, offsets: list[int]) -> None:
        self.acked.update(offset for offset in offsets if offset >= self.mark)
        while self.mark in self.acked:
            self.acked.discard(self.mark)
            self.mark += 1

    def is_acked(self, offset: int) -> bool:
        return offset < self.mark or offset in self.acked


class Topic:
    """Two logs, three producers, two readers, a shared and an exclusive subscription."""

    def __init__(self, rng: random.Random, *, logs: int = 2, failing: float = 0.3) -> None:
        self.rng = rng
        self.told = History(clock=lambda: 0.0)
        self.logs: dict[str, list[Any]] = {f"t/{n}": [] for n in range(logs)}
        self.names = list(self.logs)
        self._failing = failing
        self._unapplied: list[deque[tuple[Operation, str]]] = [deque() for _ in range(3)]
        self._unanswered: list[tuple[Operation, int]] = []
        self._positions = {(who, log): 0 for who in ("r1", "r2") for log in self.logs}
        self._shared = {log: Group() for log in self.logs}
        self._exclusive = {log: Group() for log in self.logs}
        self._owner = 0
        self._sent = 0
        self._draining = False

    def run(self, steps: int) -> History:
        actions = (self.send, self.apply, self.answer, self.read, self.receive, self.follow)
        weights = (6, 6, 5, 3, 4, 3)
        for act in self.rng.choices((*actions, self.observe), (*weights, 1), k=steps):
            act()
        for act in (self.apply, self.answer):
            while act():
                pass
        self.drain()
        return self.told

    def fate(self) -> str:
        return self.rng.choice(FATES[1:]) if self.rng.random() < self._failing else "ok"

    def send(self) -> bool:
        producer = self.rng.randrange(len(self._unapplied))
        log, text = self.rng.choice(self.names), f"m{self._sent}"
        key = f"{log}-{self.rng.randrange(3)}"
        self._sent += 1
        one = self.told.invoke(f"p{producer}", Call.SEND, log, text, key=key)
        self._unapplied[producer].append((one, self.fate()))
        return True

    def apply(self) -> bool:
        waiting = [line for line in self._unapplied if line]
        if not waiting:
            return False
        one, fate = self.rng.choice(waiting).popleft()
        if fate in ("ok", "applied"):
            self.logs[one.log].append(one.value)
        if fate == "fail":
            self.told.fail(one)
        elif fate == "ok":
            self._unanswered.append((one, len(self.logs[one.log]) - 1))
        elif self.rng.random() < 0.5:
            self.told.info(one)
        return True

    def answer(self) -> bool:
        if not self._unanswered:
            return False
        one, offset = self._unanswered.pop(self.rng.randrange(len(self._unanswered)))
        self.told.ok(one, offset if self.rng.random() < 0.95 else None)
        return True

    def read(self) -> bool:
        who, log = self.rng.choice(list(self._positions))
        position = self._positions[who, log]
        batch = self._batch(log, position)
        asked = None if position else 0
        self.told.add_done(who, Call.POLL, log, asked, batch)
        self._positions[who, log] = position + len(batch)
        return bool(batch)

    def _batch(self, log: str, position: int) -> list[tuple[int, Any]]:
        end = min(len(self.logs[log]), position + self.rng.randrange(1, 6))
        return [(at, self.logs[log][at]) for at in range(position, end)]

    def receive(self, log: str = "") -> bool:
        """Some acks get lost or are refused."""
        log = log or self.rng.choice(self.names)
        group = self._shared[log]
        offsets: list[int] = []
        while group.again and len(offsets) < 3:
            offsets.append(group.again.popleft())
        while group.fresh < len(self.logs[log]) and len(offsets) < 5:
            offsets.append(group.fresh)
            group.fresh += 1
        offsets = [offset for offset in offsets if not group.is_acked(offset)]
        self.rng.shuffle(offsets)
        who = f"c{self.rng.randrange(2)}"
        batch = [(offset, self.logs[log][offset]) for offset in offsets]
        self.told.add_done(who, Call.RECEIVE, log, None, batch, group="shared")
        if not offsets or self.rng.random() < 0.2:
            group.again.extend(offsets)
            return bool(offsets)
        one = self.told.invoke(who, Call.ACK, log, offsets, group="shared")
        fate = self.fate()
        refused = [offset for offset in offsets if self.rng.random() < 0.1]
        if fate in ("ok", "applied"):
            group.ack([offset for offset in offsets if offset not in refused])
        if fate == "ok":
            self.told.ok(one, refused)
        elif fate == "fail":
            self.told.fail(one)
        group.again.extend(offset for offset in offsets if not group.is_acked(offset))
        return True

    def follow(self, log: str = "") -> bool:
        log = log or self.rng.choice(self.names)
        group = self._exclusive[log]
        if self.rng.random() < 0.1 and not self._draining:
            self._owner += 1
            group.fresh = group.mark
        if self.rng.random() < 0.02 and not self._draining:
            group.mark = group.fresh = self.rng.randrange(group.mark + 1)
            group.acked.clear()
            self.told.add_done("admin", Call.RESET, log, group.mark, group="exclusive")
        batch = self._batch(log, group.fresh)
        who = f"e{self._owner}"
        self.told.add_done(who, Call.POLL, log, None, batch, group="exclusive")
        group.fresh += len(batch)
        if batch and self.rng.random() < 0.7:
            to = batch[-1][0]
            one = self.told.invoke(who, Call.ACK_UP_TO, log, to, group="exclusive")
            fate = self.fate()
            if fate in ("ok", "applied"):
                group.mark = max(group.mark, to + 1)
            if fate == "ok":
                self.told.ok(one)
            elif fate == "fail":
                self.told.fail(one)
        return bool(batch)

    def observe(self) -> bool:
        log = self.rng.choice(self.names)
        for name, groups in (("shared", self._shared), ("exclusive", self._exclusive)):
            self.told.add_done("watcher", Call.MARK, log, None, groups[log].mark, group=name)
        return True

    def drain(self) -> None:
        self._failing, self._draining = 0.0, True
        for who, log in self._positions:
            position = self._positions[who, log]
            batch = [*enumerate(self.logs[log])][position:]
            self.told.add_done(who, Call.POLL, log, None if position else 0, batch)
        for log in self.names:
            while self._shared[log].mark < len(self.logs[log]):
                self.receive(log)
            exclusive = self._exclusive[log]
            while exclusive.mark < len(self.logs[log]):
                exclusive.fresh = exclusive.mark
                self.follow(log)
        self.observe()
        for group in ("", "shared", "exclusive"):
            self.told.add_done("someone", Call.DRAIN, group=group)


class Ledger:
    """A writer with adds in flight, readers with their LACs, and finally two recoveries."""

    def __init__(self, rng: random.Random, *, log: str = "ledger 1") -> None:
        self.rng, self.log = rng, log
        self.told = History(clock=lambda: 0.0)
        self.stored: list[str] = []
        self._flight: deque[Operation] = deque()
        self._confirmed = -1
        self._lac = {"r1": -1, "r2": -1}

    def run(self, steps: int) -> History:
        actions = (self.add, self.confirm, self.learn, self.read)
        for act in self.rng.choices(actions, (4, 4, 2, 3), k=steps):
            act()
        self.close()
        return self.told

    def add(self) -> None:
        value = f"e{len(self.stored)}"
        self._flight.append(self.told.invoke("writer", Call.ADD, self.log, value))
        self.stored.append(value)

    def confirm(self) -> None:
        if self._flight:
            self._confirmed += 1
            self.told.ok(self._flight.popleft(), self._confirmed)

    def learn(self) -> None:
        who = self.rng.choice(list(self._lac))
        lac = self.rng.randrange(self._lac[who], self._confirmed + 1)
        self._lac[who] = lac
        self.told.add_done(who, Call.LAC, self.log, None, lac)

    def read(self) -> None:
        who = self.rng.choice(list(self._lac))
        first = self.rng.randrange(self._lac[who] + 1) if self._lac[who] >= 0 else 0
        entries = range(first, min(first + 4, self._lac[who] + 1))
        batch = [(entry, self.stored[entry]) for entry in entries]
        self.told.add_done(who, Call.READ, self.log, None, batch)

    def close(self) -> None:
        """Keep some of the adds in flight; the others are lost without an answer."""
        self.told.add_done("recoverer", Call.FENCE, self.log)
        while self._flight and self.rng.random() < 0.3:
            self.confirm()
        last = self._confirmed + self.rng.randrange(len(self._flight) + 1)
        for closer in ("recoverer", "other", "r1", "r2"):
            self.told.add_done(closer, Call.CLOSE, self.log, None, (last, 7 * (last + 1)))
        for one in self._flight:
            if self.rng.random() < 0.5:
                self.told.info(one)
        entries = [*enumerate(self.stored[: last + 1])]
        for bookie in ("b1", "b2"):
            held = [pair for pair in enumerate(self.stored) if self.rng.random() < 0.9]
            self.told.add_done(bookie, Call.REPLICA, self.log, None, held)
        for who in self._lac:
            self.told.add_done(who, Call.LAC, self.log, None, last)
            self.told.add_done(who, Call.READ, self.log, None, entries)
            self.told.add_done(who, Call.DRAIN, self.log)
