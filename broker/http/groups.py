"""Keep consumer groups in memory, and decide which broker keeps which group.

The live brokers agree on that without asking each other: the keeper is the broker with the highest
weight for the group's name (rendezvous hashing). If two brokers disagree for a while, both keep the
group, and its generations ensure that a partition is not given out twice unnoticed
(subscriptions/group.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from octavo.broker.errors import GroupFull
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.gate import Wakes
from octavo.broker.subscriptions.group import Group
from octavo.broker.types import BrokerInfo

_SHARE_OF_A_PRINCIPAL = 4
GroupName = tuple[str, str]
"""The namespace, and the name of the group's subscriptions."""


def keeper_of(name: GroupName, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    """Return the live broker that keeps the group. Pure."""
    text = "/".join(name)
    return max(
        brokers,
        key=lambda one: hashlib.blake2b(f"{one.broker_id} {text}".encode()).digest(),
    )


class KeptGroup:
    """A group, and the tasks that wait for it to change."""

    def __init__(self, members_max: int, founder: str) -> None:
        """`founder`: the principal of its first member; empty if unknown."""
        self.group = Group(members_max)
        self.wakes = Wakes()
        self.founder = founder


class Groups:
    """The groups that this broker keeps."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._kept: dict[GroupName, KeptGroup] = {}

    def find(self, name: GroupName) -> KeptGroup | None:
        """Return the group; None when it has no members here."""
        return self._kept.get(name)

    def open(self, name: GroupName, founder: str = "") -> KeptGroup:
        """Return the group; make it if it is new. Raises `GroupFull` if there are too many groups.

        `founder`: the principal that would be its first member; empty if unknown. A principal may
        found a quarter of all groups, so that it cannot take all places.
        """
        found = self._kept.get(name)
        if found is None:
            if self._no_room(founder):
                self._forget_empty()
            if refusal := self._no_room(founder):
                raise GroupFull(refusal)
            found = self._kept[name] = KeptGroup(self._config.group_members_max, founder)
        return found

    def founded_by(self, principal: str) -> int:
        """Return how many groups a principal has founded."""
        return sum(one.founder == principal for one in self._kept.values())

    def of_namespace(self, namespace: str) -> int:
        """Return how many groups of a namespace are kept here."""
        return sum(name[0] == namespace for name in self._kept)

    def _no_room(self, founder: str) -> str:
        """Return why another group is refused; empty if it is allowed."""
        most = self._config.groups_max
        if len(self._kept) >= most:
            return (
                f"this broker keeps {len(self._kept)} consumer groups already, the most it may "
                "(groups_max)"
            )
        share = max(1, most // _SHARE_OF_A_PRINCIPAL)
        if founder and len(self._kept) >= share:
            founded = self.founded_by(founder)
            if founded >= share:
                return (
                    f"{founder} has founded {founded} consumer groups here, the most that one "
                    f"principal may: a part of the {most} of all (groups_max)"
                )
        return ""

    def _forget_empty(self) -> None:
        for name, kept in tuple(self._kept.items()):
            kept.group.expire(now_ms())
            if not kept.group.members:
                del self._kept[name]


def now_ms() -> int:
    """Return the time in ms, by the clock of the groups."""
    return int(asyncio.get_running_loop().time() * 1000)
