"""What the audit log tells one by one, and what it counts. Pure.

    create, delete, alter, admin, read, write     each time
    anything that was denied                      each time; of one principal from one address
                                                  `DENIALS_TOLD` in a minute, the rest is counted
    produce, consume                              once for each principal, operation and resource,
                                                  then the count of the rest, once a minute
    describe                                      not at all, unless it was denied

What the cluster's own processes are allowed is not told: it is the work of the others' calls.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.security.principal import Identity
from octavo.security.rules import Operation, Resource

WINDOW_S = 60.0
DENIALS_TOLD = 20
"""In a window, of one principal from one address."""
KEPT = 10_000
"""Subjects that are counted; beyond, the one counted for longest is told of early."""
REASON_CHARS = 300

_ADMINISTRATIVE = frozenset(Operation) - {
    Operation.PRODUCE,
    Operation.CONSUME,
    Operation.DESCRIBE,
}


class Decided(NamedTuple):
    """A decision about what somebody did, or tried to."""

    identity: Identity
    operation: Operation
    resource: Resource
    allowed: bool
    peer: str
    """The address that they came from."""
    reason: str = ""
    call: str = ""


class Deed(NamedTuple):
    """Somebody did something, or tried to."""

    principal: str
    source: str
    """What proved who they are: `token`, `certificate`, …"""
    operation: str
    resource: str
    peer: str
    """The address that they came from."""
    allowed: bool
    reason: str = ""
    """Why not, or the rule that allows it, where that was told."""
    call: str = ""


class Told(NamedTuple):
    """A line of the audit log: what was done, and how often since it was last told."""

    deed: Deed
    count: int  # type: ignore[assignment]  # tuple.count is not used here


def deed_of(found: Decided) -> Deed:
    """A decision, in words."""
    return Deed(
        found.identity.name,
        found.identity.source,
        str(found.operation),
        str(found.resource),
        found.peer,
        found.allowed,
        found.reason[:REASON_CHARS],
        found.call,
    )


class _Counted:
    __slots__ = ("count", "deed", "since_s", "told")

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self.told = 0
        self.count = 0
        self.deed: Deed | None = None


class AuditBook:
    """Decides what is told. Seconds are of a clock that never goes back."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._counted: dict[tuple[str, ...], _Counted] = {}
        """Whose window began first stands first."""
        self._early: list[Told] = []

    def wants(self, identity: Identity, operation: Operation, allowed: bool) -> bool:
        """Whether a decision is told at all."""
        return not allowed or not (identity.is_node or operation is Operation.DESCRIBE)

    def note(self, deed: Deed, now_s: float) -> bool:
        """Whether to tell of it now; else it is counted."""
        if deed.allowed and deed.operation in _ADMINISTRATIVE:
            return True
        if deed.allowed:
            key: tuple[str, ...] = (deed.principal, deed.operation, deed.resource)
            told_max = 1
        else:
            key, told_max = (deed.principal, deed.peer), DENIALS_TOLD
        found = self._counted.get(key)
        if found is None:
            if len(self._counted) >= self._kept:
                self._end(next(iter(self._counted)))
            found = self._counted[key] = _Counted(now_s)
        if found.told < told_max:
            found.told += 1
            return True
        found.count += 1
        found.deed = deed
        return False

    def due(self, now_s: float, *, all_of_it: bool = False) -> list[Told]:
        """What was counted and whose minute is over; `all_of_it`: also what is not over yet."""
        for key in tuple(self._counted):
            found = self._counted[key]
            if not all_of_it and now_s - found.since_s < WINDOW_S:
                break
            repeated = found.count and found.deed is not None and found.deed.allowed
            self._end(key)
            if repeated:  # it goes on: what follows is counted again, and not told one by one
                again = self._counted[key] = _Counted(now_s)
                again.told = 1
        told, self._early = self._early, []
        return told

    def _end(self, key: tuple[str, ...]) -> None:
        found = self._counted.pop(key)
        if found.count and found.deed is not None:
            self._early.append(Told(found.deed, found.count))
