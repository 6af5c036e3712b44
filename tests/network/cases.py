"""The tried partitions: which links lose or delay packets, for given roles. Pure: whether a
publish may be acked under a loss follows from the graph alone (`may_ack`); late packets forbid
no ack."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.network.hosts import CLIENT, Late, Lateness, Link, Loss

ACK_QUORUM = 2
FLAP_S = 0.4


class Phase(enum.StrEnum):
    STEADY = "steady"
    ROLL_OVER = "roll-over"
    """The owner has switched to the next ledger; the old ledger is not yet closed."""
    TAKE_OVER = "take-over"
    """The former owner was killed; the next owner has begun to recover its ledger."""


@dataclass(frozen=True)
class Roles:
    """`bookies` begins with the bookies of the owner's ledger."""

    owner: str
    other: str
    brokers: tuple[str, ...]
    bookies: tuple[str, ...]
    zk_leader: str
    zookeepers: tuple[str, ...]

    @property
    def everybody(self) -> tuple[str, ...]:
        return (CLIENT, *self.brokers, *self.bookies, *self.zookeepers)

    @property
    def zk_followers(self) -> tuple[str, ...]:
        return tuple(name for name in self.zookeepers if name != self.zk_leader)


@dataclass(frozen=True)
class Case:
    """`goes_on`: in the steady phase, publishing continues meanwhile."""

    name: str
    what: str
    loss: Callable[[Roles], Loss] = lambda _: {}
    goes_on: bool = True
    flaps: bool = False
    late: Callable[[Roles], Late] = lambda _: {}


def between(some: Iterable[str], others: Iterable[str]) -> dict[Link, float]:
    others = tuple(others)
    pairs = [(a, b) for a in some for b in others if a != b]
    return {link: 1.0 for a, b in pairs for link in ((a, b), (b, a))}


def alone(roles: Roles, *names: str) -> dict[Link, float]:
    return between(names, [name for name in roles.everybody if name not in names])


def deaf(roles: Roles, name: str) -> dict[Link, float]:
    return {(other, name): 1.0 for other in roles.everybody if other != name}


def mute(roles: Roles, name: str) -> dict[Link, float]:
    return {(name, other): 1.0 for other in roles.everybody if other != name}


def lossy(roles: Roles, share: float) -> dict[Link, float]:
    names = roles.everybody
    return {(a, b): share for a in names for b in names if a != b}


def in_pieces(roles: Roles) -> dict[Link, float]:
    """A broker, a bookie and a ZooKeeper server together, for as many groups as there are."""
    pieces = [{roles.owner, roles.bookies[0], roles.zk_leader}]
    pieces.append({roles.other, roles.bookies[1], roles.zk_followers[0]})
    pieces.append(set(roles.everybody) - pieces[0] - pieces[1])
    found: dict[Link, float] = {}
    for number, piece in enumerate(pieces):
        for other in pieces[number + 1 :]:
            found |= between(sorted(piece), sorted(other))
    return found


def owner_with(*parts: str) -> Callable[[Roles], Loss]:
    """The owner, a bookie of its ledger, a server of ZooKeeper, and `parts`, without the rest."""

    def loss(roles: Roles) -> Loss:
        server = roles.zk_followers[0] if parts else roles.zk_leader
        return alone(roles, roles.owner, roles.bookies[0], server, *parts)

    return loss


CASES = (
    Case("bookie", "a bookie of the ledger is cut off", lambda r: alone(r, r.bookies[0])),
    Case("owner", "the owner is cut off", lambda r: alone(r, r.owner)),
    Case("other-broker", "another broker is cut off", lambda r: alone(r, r.other)),
    Case("zookeeper-leader", "ZooKeeper's leader is cut off", lambda r: alone(r, r.zk_leader)),
    Case(
        "zookeeper",
        "all of ZooKeeper is cut off",
        lambda r: alone(r, *r.zookeepers),
    ),
    Case("client", "the clients are cut off", lambda r: alone(r, CLIENT), goes_on=False),
    Case(
        "owner-in-minority",
        "owner, one bookie, ZooKeeper's leader | the rest, with the clients",
        owner_with(),
    ),
    Case(
        "client-in-minority",
        "owner, one bookie, a ZooKeeper follower, the clients | the rest",
        owner_with(CLIENT),
        goes_on=False,
    ),
    Case(
        "halves",
        "owner, two bookies, ZooKeeper's leader | two bookies, the rest, with the clients",
        lambda r: alone(r, r.owner, *r.bookies[:2], r.zk_leader),
        goes_on=False,
    ),
    Case(
        "pieces",
        "three pieces, each with a broker and a ZooKeeper server; the clients in the largest",
        in_pieces,
        goes_on=False,
    ),
    Case("owner-deaf", "the owner hears nobody", lambda r: deaf(r, r.owner)),
    Case("owner-mute", "nobody hears the owner", lambda r: mute(r, r.owner)),
    Case("bookie-deaf", "a bookie hears nobody", lambda r: deaf(r, r.bookies[0])),
    Case("bookie-mute", "nobody hears a bookie", lambda r: mute(r, r.bookies[0])),
    Case(
        "bookie-without-metadata",
        "a bookie reaches all but ZooKeeper",
        lambda r: between([r.bookies[0]], r.zookeepers),
    ),
    Case(
        "owner-without-metadata",
        "the owner reaches all but ZooKeeper",
        lambda r: between([r.owner], r.zookeepers),
    ),
    Case(
        "flapping",
        f"the owner and a bookie are cut off and back, every {FLAP_S} s",
        lambda r: alone(r, r.owner) | alone(r, r.bookies[0]),
        goes_on=False,
        flaps=True,
    ),
    *(
        Case(
            f"loss-{percent}",
            f"every link loses {percent} % of its packets",
            lambda r, share=percent / 100: lossy(r, share),  # type: ignore[misc,arg-type]
            goes_on=percent <= 10,
        )
        for percent in (10, 30, 60)
    ),
)
LATE_MS = 3_000
DELAYS = (
    Case(
        "late-bookie",
        "a bookie of the ledger and the rest hear each other 300 ms late, 100 more or less",
        late=lambda r: dict.fromkeys(alone(r, r.bookies[0]), Lateness(300, 100)),
    ),
    Case(
        "late-metadata",
        f"the owner and ZooKeeper hear each other {LATE_MS} ms late",
        late=lambda r: dict.fromkeys(between([r.owner], r.zookeepers), Lateness(LATE_MS)),
    ),
    *(
        Case(
            f"late-{by.ms:.0f}",
            f"every link is {by.ms:.0f} ms late, {by.jitter_ms:.0f} more or less",
            late=lambda r, by=by: dict.fromkeys(lossy(r, 1), by),  # type: ignore[misc,arg-type]
        )
        for by in (Lateness(50, 20), Lateness(200, 50))
    ),
)
BY_NAME = {case.name: case for case in (*CASES, *DELAYS)}


def hear_each_other(loss: Loss, a: str, b: str) -> bool:
    return a == b or (loss.get((a, b), 0) < 1 and loss.get((b, a), 0) < 1)


def may_ack(loss: Loss, roles: Roles, broker: str) -> bool:
    """Whether a publish that begins at `broker` now can be acked, by it or through it."""

    def reaches_quorum(name: str) -> bool:
        return sum(hear_each_other(loss, name, one) for one in roles.bookies) >= ACK_QUORUM

    return any(
        hear_each_other(loss, broker, name) and reaches_quorum(name) for name in roles.brokers
    )


def silent(loss: Loss, roles: Roles) -> list[str]:
    found = [name for name in roles.brokers if not may_ack(loss, roles, name)]
    if not any(hear_each_other(loss, CLIENT, name) for name in roles.brokers if name not in found):
        found.append(CLIENT)
    return found
