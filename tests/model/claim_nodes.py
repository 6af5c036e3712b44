"""Brokers that claim a partition and hand it on, and the record of its owner. A broker decides
by the production code of broker/cluster/ownership_states.py. The metadata store handles a
broker's requests in their order; all other messages come in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.broker.cluster.ownership_states import (
    HERE,
    Event,
    Route,
    State,
    after,
    begins_release,
    known_route,
    may,
    route,
)
from tests.model.world import Message, Mood, Node, Nodes


class Record(Node):
    def __init__(self, brokers: Sequence[str], expiring: Sequence[str]) -> None:
        super().__init__("record")
        self.owner: str | None = None
        self.sessions = dict.fromkeys(brokers, 0)
        self.expiring = tuple(expiring)

    def moods(self) -> Sequence[Mood]:
        return [Mood("expire", (name,), 1) for name in self.expiring if not self.sessions[name]]

    def expire(self, name: str) -> None:
        self.sessions[name] += 1
        self.post(name, "session_over", self.sessions[name])
        if self.owner == name:
            self.owner = None

    def claim(self, sender: str, session: int) -> None:
        if session != self.sessions[sender]:
            self.post(sender, "claim_refused")
        elif self.owner in (None, sender):
            self.owner = sender
            self.post(sender, "claimed", session)
        else:
            self.post(sender, "taken")

    def release(self, sender: str, session: int) -> None:
        is_theirs = session == self.sessions[sender] and self.owner == sender
        self.post(sender, "theirs" if is_theirs else "released")

    def delete(self, sender: str, session: int) -> None:
        """A record that was deleted and made again has the same version."""
        if session == self.sessions[sender] and self.owner == sender:
            self.owner = None
        self.post(sender, "released")

    def read(self, sender: str) -> None:
        self.post(sender, "owner_is", self.owner)

    def ignores(self, message: Message, sender: Any) -> bool:
        return False

    def brief(self) -> str:
        return f"owner {self.owner}"


class Broker(Node):
    """A broker whose client asks for the partition until some broker serves it. `hands`: how
    often it hands the partition on to `other`; `closes`: how often it unloads it. Each broker
    takes the other for the preferred broker, the worst difference of views."""

    def __init__(self, name: str, other: str, *, hands: int = 0, closes: int = 0) -> None:
        super().__init__(name)
        self.other, self.hands, self.closes = other, hands, closes
        self.state = State.AWAY
        self.session = 0
        self.held = False
        self.successor: str | None = None
        self.asked: str | None = None
        """The broker for whose client the record is being read."""
        self.has_asked = False
        self.is_served = False
        self.giver: str | None = None
        self.store: tuple[str, ...] = ()
        """Requests for the store, in order; the first is in progress if `is_sent`."""
        self.is_sent = False

    def moods(self) -> Sequence[Mood]:
        found = []
        if not self.is_served and not self.has_asked:
            found.append(Mood("ask"))
        if self.store and not self.is_sent:
            found.append(Mood("send"))
            if self.store[0] == "release":
                found.append(Mood("fail", (), 1))
        if self.state is State.SERVING and self.hands:
            found.append(Mood("hand_on"))
        if self.state is State.SERVING and self.closes:
            found.append(Mood("close"))
        if self.state in (State.YIELDING, State.CLOSING):
            found.append(Mood("drained"))
        if self.state in (State.HANDED, State.FREED):
            found.append(Mood("time_out"))
        if self.state is State.PREPARED:
            found.append(Mood("expire"))
        return found

    def ask(self) -> None:
        self.has_asked = True
        self._route(self.name)

    def forwarded(self, sender: str) -> None:
        self._route(sender)

    def _route(self, client: str) -> None:
        to = known_route(self.state, has_successor=self.successor is not None)
        if to is not None:
            self._go(client, to)
        elif self.asked is None:
            self.asked = client
            self.post("record", "read", self.name)
        else:
            self._answer(client, "moving")

    def owner_is(self, owner: str | None) -> None:
        client, self.asked = self.asked, None
        assert client is not None
        to = known_route(self.state, has_successor=self.successor is not None) or route(
            self.state,
            owner,
            self.name,
            lambda: self.other,
            is_forwarded=client != self.name,
            is_left=False,
            is_stopping=False,
        )
        self._go(client, to)

    def _go(self, client: str, to: Route) -> None:
        if to is Route.CLAIM:
            self._claim(Event.CLAIM)
        if to is Route.HERE or to is Route.CLAIM:
            self._answer(client, "served" if self.state is State.SERVING else "moving")
        elif to is Route.WAIT:
            self._answer(client, "moving")
        elif client != self.name:
            self._answer(client, "not_owner")
        else:
            self.post(self.other, "forwarded", self.name)

    def _answer(self, client: str, how: str) -> None:
        if client == self.name:
            getattr(self, how)()
        else:
            self.post(client, how)

    def served(self) -> None:
        self.is_served = True

    def moving(self) -> None:
        self.has_asked = False

    def not_owner(self) -> None:
        self.has_asked = False

    def _on(self, event: Event) -> None:
        before, self.state = self.state, after(self.state, event)
        if begins_release(before, self.state):
            self.held = False
            self.store = (*self.store, "release")

    def _claim(self, event: Event) -> None:
        self._on(event)
        self.store = (*self.store, "claim")

    def send(self) -> None:
        self.is_sent = True
        self.post("record", self.store[0], self.name, self.session)

    def fail(self) -> None:
        self.store = self.store[1:]
        self._on(Event.RELEASED)

    def _answered(self) -> None:
        self.store, self.is_sent = self.store[1:], False

    def claimed(self, session: int) -> None:
        self._answered()
        if self.state is not State.CLAIMING or "claim" in self.store:
            return
        if session != self.session:
            self.store = (*self.store, "claim")
            return
        self.held = True
        self._on(Event.OPENED)
        self._tell_giver("has_it")

    def claim_refused(self) -> None:
        self._answered()
        if self.state is State.CLAIMING and "claim" not in self.store:
            self.store = (*self.store, "claim")

    def taken(self) -> None:
        self._answered()
        if self.state is State.CLAIMING and "claim" not in self.store:
            self._on(Event.TAKEN)
            self._tell_giver("not_taken")

    def theirs(self) -> None:
        self._answered()
        self.store = (*self.store, "delete")

    def released(self) -> None:
        self._answered()
        self._on(Event.RELEASED)

    def session_over(self, session: int) -> None:
        self.session = session
        if self.held and self.state in (State.CLAIMING, State.SERVING, State.OFFERED):
            self._on(Event.LOST)
        self.held = False

    def hand_on(self) -> None:
        self.hands -= 1
        self._on(Event.OFFER)
        self.post(self.other, "prepare", self.name)

    def prepare(self, sender: str) -> None:
        if may(self.state, Event.PREPARE):
            self._on(Event.PREPARE)
            self.post(sender, "ready")
        else:
            self.post(sender, "declined")

    def expire(self) -> None:
        self._on(Event.EXPIRE)

    def ready(self) -> None:
        if self.state is State.OFFERED:
            self._on(Event.YIELD)

    def declined(self) -> None:
        if self.state is State.OFFERED:
            self._on(Event.DECLINED)

    def close(self) -> None:
        self.closes -= 1
        self._on(Event.CLOSE)

    def drained(self) -> None:
        is_yielding = self.state is State.YIELDING
        self._on(Event.CLOSED)
        if is_yielding:
            self.successor = self.other
            self.post(self.other, "take", self.name)

    def take(self, sender: str) -> None:
        if self.state in HERE:
            self.post(sender, "has_it" if self.state is State.SERVING else "not_taken")
        elif may(self.state, Event.CLAIM):
            self.giver = sender
            self._claim(Event.CLAIM)
        else:
            self.post(sender, "not_taken")

    def _tell_giver(self, how: str) -> None:
        if self.giver is not None:
            self.post(self.giver, how)
            self.giver = None

    def has_it(self) -> None:
        if self.state in (State.HANDED, State.FREED):
            self.successor = None
            self._on(Event.SETTLED)

    def not_taken(self) -> None:
        self.time_out()

    def time_out(self) -> None:
        if self.state not in (State.HANDED, State.FREED):
            return
        self.successor = None
        if after(self.state, Event.TAKE_BACK) is State.CLAIMING:
            self._claim(Event.TAKE_BACK)
        else:
            self._on(Event.TAKE_BACK)

    def ignores(self, message: Message, sender: Any) -> bool:
        return False

    def brief(self) -> str:
        client = " served" if self.is_served else ""
        return f"{self.state.value}{' held' if self.held else ''}{client}"


def check(nodes: Nodes) -> str | None:
    """A broker that believes it holds the record holds it while its session lives."""
    record: Record = nodes["record"]
    for node in nodes.values():
        if not isinstance(node, Broker) or record.sessions[node.name] != node.session:
            continue
        if node.held and record.owner != node.name:
            return f"claim: {node.name} serves the partition, and its record names {record.owner}"
    return None


def all_served(nodes: Nodes) -> bool:
    return all(node.is_served for node in nodes.values() if isinstance(node, Broker))
