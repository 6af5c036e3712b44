"""Decide which decisions the audit log writes out, and which it only counts. Pure.

    create, delete, alter, admin, read, write   each is written
    denied, any operation                       up to `DENIALS_TOLD` a minute for a principal and
                                                address are written, the rest is counted
    produce, consume                            the first for a principal, operation and resource
                                                is written; a count of the rest once a minute
    describe                                    only if it was denied

The operations of brokers and bookies are left out: they serve clients' calls, which are logged.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.security.principal import Identity
from octavo.security.rules import Operation, Resource

WINDOW_S = 60.0
DENIALS_TOLD = 20
KEPT = 10_000
"""The most counts; beyond, the oldest is written early."""
REASON_CHARS = 300

_ADMINISTRATIVE = frozenset(Operation) - {
    Operation.PRODUCE,
    Operation.CONSUME,
    Operation.DESCRIBE,
}


class Decided(NamedTuple):
    identity: Identity
    operation: Operation
    resource: Resource
    allowed: bool
    peer: str
    reason: str = ""
    call: str = ""


class Deed(NamedTuple):
    principal: str
    source: str
    """The kind of proof: `token`, `certificate`, …"""
    operation: str
    resource: str
    peer: str
    allowed: bool
    reason: str = ""
    """Why it was denied, or the rule that allowed it."""
    call: str = ""


class Told(NamedTuple):
    """A decision, and how many like it since the last line."""

    deed: Deed
    count: int  # type: ignore[assignment]  # tuple.count is not used here


def deed_of(found: Decided) -> Deed:
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
    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._counted: dict[tuple[str, ...], _Counted] = {}
        self._early: list[Told] = []

    def wants(self, identity: Identity, operation: Operation, allowed: bool) -> bool:
        return not allowed or not (identity.is_node or operation is Operation.DESCRIBE)

    def note(self, deed: Deed, now_s: float) -> bool:
        """Return whether to write `deed` now; otherwise it is counted."""
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
        """Return the counts whose window is over; with `all_of_it`, every count."""
        for key in tuple(self._counted):
            found = self._counted[key]
            if not all_of_it and now_s - found.since_s < WINDOW_S:
                break
            repeated = found.count and found.deed is not None and found.deed.allowed
            self._end(key)
            if repeated:  # still in use: begin a new count, without a line for its first use
                again = self._counted[key] = _Counted(now_s)
                again.told = 1
        told, self._early = self._early, []
        return told

    def _end(self, key: tuple[str, ...]) -> None:
        found = self._counted.pop(key)
        if found.count and found.deed is not None:
            self._early.append(Told(found.deed, found.count))
