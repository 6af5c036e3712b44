"""Remember for an hour which brokers were live and are gone, so that people see them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.types import BrokerInfo

REMEMBERED_S = 3_600.0
REMEMBERED_MAX = 100


class GoneBroker(NamedTuple):
    """A broker that was live and is missing now."""

    info: BrokerInfo
    since_s: float
    """Steady time at which it was first missed."""


class GoneBrokers:
    """The brokers that this broker has missed since its start; a broker that returns is dropped."""

    def __init__(self) -> None:
        self._gone: dict[str, GoneBroker] = {}

    def follow(
        self, before: Mapping[str, BrokerInfo], live: Mapping[str, BrokerInfo], now_s: float
    ) -> None:
        """Update the missing brokers: `before` were live, and now `live` are."""
        for name in live:
            self._gone.pop(name, None)
        for name, info in sorted(before.items()):
            if name not in live:
                self._gone[name] = GoneBroker(info, now_s)
        while len(self._gone) > REMEMBERED_MAX:
            del self._gone[next(iter(self._gone))]

    def at(self, now_s: float) -> list[GoneBroker]:
        """List the brokers missing for less than an hour, by id."""
        for name, one in tuple(self._gone.items()):
            if now_s - one.since_s > REMEMBERED_S:
                del self._gone[name]
        return [one for _, one in sorted(self._gone.items())]
