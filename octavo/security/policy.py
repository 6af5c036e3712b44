"""The policy in the metadata store: one record, changed by compare-and-set.

    /octavo/security/policy    secured, rules, roles

It is one record, so that a process never has rights from before and after a change mixed; the
record's version names them. It has room for some ten thousand rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo.metadata.store import BadRecord, MetadataStore
from octavo.security.principal import InvalidPrincipal, checked_principal
from octavo.security.record import SharedRecord
from octavo.security.rules import (
    ALL,
    OPEN,
    InvalidRule,
    Operation,
    Pattern,
    Policy,
    Rule,
    parse_operations,
)

POLICY_PATH = "/octavo/security/policy"
RULES_A_TURN = 500
"""Rules read before other work of the process gets its turn."""


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """`operations` is `produce,consume` or `all`."""

    principal: str
    allow: bool
    operations: str
    resource: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleRecord:
    principal: str
    role: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """`extra`: fields that a newer version has written."""

    secured: bool = False
    rules: tuple[RuleRecord, ...] = ()
    roles: tuple[RoleRecord, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class Read(NamedTuple):
    """`version` is −1 without a record."""

    policy: Policy
    version: int


class PolicyStore:
    def __init__(self, store: MetadataStore) -> None:
        self._record = SharedRecord(store, POLICY_PATH, PolicyRecord)
        self._last = (PolicyRecord(), OPEN)
        """The record as last read, and its policy: an unchanged record is not decoded again."""

    async def read(self) -> Read:
        """Raises `MetadataUnavailable`, `BadRecord`."""
        record, version = await self._record.read()
        if version < 0:
            return Read(OPEN, version)
        if record != self._last[0]:
            self._last = (record, await policy_in_turns(record))
        return Read(self._last[1], version)

    async def read_record(self) -> tuple[PolicyRecord, int]:
        return await self._record.read()

    async def change(self, make: Callable[[PolicyRecord], PolicyRecord]) -> Read:
        """Replace the record by `make(record)`; nothing is written if that changes nothing.

        Raises `MetadataUnavailable` (read again: the change may have been made), `BadRecord`,
        `RecordTooLong`.
        """
        record, version = await self._record.change(make)
        return Read(await policy_in_turns(record), version)


def policy_of(record: PolicyRecord) -> Policy:
    """Decode the policy. Raises `BadRecord` if any part is invalid: no partial policy."""
    reading = _Reading(record)
    while reading.step(len(record.rules) + len(record.roles)):
        pass
    return reading.policy()


async def policy_in_turns(record: PolicyRecord) -> Policy:
    """Decode some rules in each turn of the loop: ten thousand take a tenth of a second.

    Raises `BadRecord`.
    """
    reading = _Reading(record)
    left = reading.step(RULES_A_TURN)
    while left:
        await asyncio.sleep(0)
        left = reading.step(RULES_A_TURN)
    return reading.policy()


class _Reading:
    def __init__(self, record: PolicyRecord) -> None:
        self._record = record
        self._rules: list[Rule] = []
        self._roles: dict[str, list[str]] = {}
        self._roles_read = 0

    def step(self, most: int) -> bool:
        """Return whether some are left. Raises `BadRecord`."""
        record, rules, done = self._record, self._rules, self._roles_read
        try:
            if len(rules) < len(record.rules):
                for one in record.rules[len(rules) : len(rules) + most]:
                    rules.append(
                        make_rule(one.principal, one.operations, one.resource, allow=one.allow)
                    )
            else:
                for held in record.roles[done : done + most]:
                    who = checked_principal(held.principal, "user", "group")
                    self._roles.setdefault(who, []).append(checked_principal(held.role, "role"))
                    self._roles_read += 1
        except (InvalidRule, InvalidPrincipal) as error:
            raise BadRecord(f"{POLICY_PATH}: {error}") from error
        return len(rules) < len(record.rules) or self._roles_read < len(record.roles)

    def policy(self) -> Policy:
        return Policy(self._rules, self._roles, secured=self._record.secured)


def rule_record(rule: Rule) -> RuleRecord:
    names = "all" if rule.operations == ALL else ",".join(sorted(rule.operations))
    return RuleRecord(rule.principal, rule.allow, names, str(rule.pattern))


def make_rule(principal: str, operations: str, resource: str, *, allow: bool) -> Rule:
    return Rule(
        checked_principal(principal), allow, parse_operations(operations), Pattern.parse(resource)
    )


def record_of(
    made: Iterable[RuleRecord], roles: Iterable[tuple[str, str]], extra: Mapping[str, Any]
) -> PolicyRecord:
    held = (_role(principal, role) for principal, role in roles)
    return PolicyRecord(
        True,
        tuple(
            {(one.allow, one.principal, one.operations, one.resource): one for one in made}.values()
        ),
        tuple({(one.principal, one.role): one for one in held}.values()),
        extra,
    )


def with_rule(record: PolicyRecord, rule: Rule) -> PolicyRecord:
    made = rule_record(rule)
    if made in record.rules:
        return record
    return PolicyRecord(record.secured, (*record.rules, made), record.roles, record.extra)


def without_rule(record: PolicyRecord, rule: Rule) -> PolicyRecord:
    made = rule_record(rule)
    kept = tuple(one for one in record.rules if one != made)
    return PolicyRecord(record.secured, kept, record.roles, record.extra)


def _role(principal: str, role: str) -> RoleRecord:
    return RoleRecord(
        checked_principal(principal, "user", "group"), checked_principal(role, "role")
    )


def with_role(record: PolicyRecord, principal: str, role: str) -> PolicyRecord:
    made = _role(principal, role)
    if made in record.roles:
        return record
    return PolicyRecord(record.secured, record.rules, (*record.roles, made), record.extra)


def without_role(record: PolicyRecord, principal: str, role: str) -> PolicyRecord:
    made = _role(principal, role)
    kept = tuple(one for one in record.roles if one != made)
    return PolicyRecord(record.secured, record.rules, kept, record.extra)


ADMIN_ROLE = "role:admin"


def secured(record: PolicyRecord, admin: str) -> PolicyRecord:
    """Return the record of a secured cluster in which `admin` may do everything."""
    everything = Rule(ADMIN_ROLE, True, frozenset(Operation), Pattern.parse("*"))
    made = with_rule(record, everything)
    made = with_role(made, admin, ADMIN_ROLE)
    return PolicyRecord(True, made.rules, made.roles, made.extra)


def opened(record: PolicyRecord) -> PolicyRecord:
    """Return the record of an unsecured cluster; it keeps the rules for later."""
    return PolicyRecord(False, record.rules, record.roles, record.extra)
