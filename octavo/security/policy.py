"""The policy in the metadata store: one record, changed by compare-and-set.

    /octavo/security/policy    secured, rules, roles

It is one record rather than one for each rule, so that a process has the rights from before a
change or from after it, never a mix; the record's version names them. It has room for some ten
thousand rules; prefixes and roles keep the number small. The rules are stored as people write them.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """A rule as text; `operations` is `produce,consume` or `all`."""

    principal: str
    allow: bool
    operations: str
    resource: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleRecord:
    """A principal has a role."""

    principal: str
    role: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """The policy's record. `extra`: fields that a newer version has written."""

    secured: bool = False
    rules: tuple[RuleRecord, ...] = ()
    roles: tuple[RoleRecord, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class Read(NamedTuple):
    """A policy, and the version of its record; −1 without a record."""

    policy: Policy
    version: int


class PolicyStore:
    """Reads and changes the policy's record."""

    def __init__(self, store: MetadataStore) -> None:
        self._record = SharedRecord(store, POLICY_PATH, PolicyRecord)

    async def read(self) -> Read:
        """Return the policy. Raises `MetadataUnavailable`, `BadRecord`."""
        record, version = await self._record.read()
        return Read(OPEN if version < 0 else policy_of(record), version)

    async def read_record(self) -> tuple[PolicyRecord, int]:
        """Return the record and its version; −1 without a record. Raises as `read`."""
        return await self._record.read()

    async def change(self, make: Callable[[PolicyRecord], PolicyRecord]) -> Read:
        """Replace the record by `make(record)`; nothing is written if that changes nothing.

        Raises `MetadataUnavailable` (read again: the change may have been made), `BadRecord`,
        `RecordTooLong`.
        """
        record, version = await self._record.change(make)
        return Read(policy_of(record), version)


def policy_of(record: PolicyRecord) -> Policy:
    """Decode the record. Raises `BadRecord` if any part is invalid: no partial policy."""
    roles: dict[str, list[str]] = {}
    try:
        rules = [
            Rule(
                checked_principal(one.principal),
                one.allow,
                parse_operations(one.operations),
                Pattern.parse(one.resource),
            )
            for one in record.rules
        ]
        for one in record.roles:
            roles.setdefault(checked_principal(one.principal, "user", "group"), []).append(
                checked_principal(one.role, "role")
            )
    except (InvalidRule, InvalidPrincipal) as error:
        raise BadRecord(f"{POLICY_PATH}: {error}") from error
    return Policy(rules, roles, secured=record.secured)


def rule_record(rule: Rule) -> RuleRecord:
    """Return the rule as it is stored."""
    names = "all" if rule.operations == ALL else ",".join(sorted(rule.operations))
    return RuleRecord(rule.principal, rule.allow, names, str(rule.pattern))


def make_rule(principal: str, operations: str, resource: str, *, allow: bool) -> Rule:
    """Parse a rule as a person writes it. Raises `InvalidRule`, `InvalidPrincipal`."""
    return Rule(
        checked_principal(principal), allow, parse_operations(operations), Pattern.parse(resource)
    )


def record_of(
    rules: Iterable[Rule], roles: Iterable[tuple[str, str]], extra: Mapping[str, Any]
) -> PolicyRecord:
    """Return the record of a secured cluster with these rules and roles, duplicates removed.
    Raises `InvalidPrincipal`."""
    made = (rule_record(one) for one in rules)
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
    """Return the record with `rule` added; unchanged if it has the rule already."""
    made = rule_record(rule)
    if made in record.rules:
        return record
    return PolicyRecord(record.secured, (*record.rules, made), record.roles, record.extra)


def without_rule(record: PolicyRecord, rule: Rule) -> PolicyRecord:
    """Return the record without `rule`; unchanged if it has no such rule."""
    made = rule_record(rule)
    kept = tuple(one for one in record.rules if one != made)
    return PolicyRecord(record.secured, kept, record.roles, record.extra)


def _role(principal: str, role: str) -> RoleRecord:
    return RoleRecord(
        checked_principal(principal, "user", "group"), checked_principal(role, "role")
    )


def with_role(record: PolicyRecord, principal: str, role: str) -> PolicyRecord:
    """Return the record with `role` given to a user or group. Raises `InvalidPrincipal`."""
    made = _role(principal, role)
    if made in record.roles:
        return record
    return PolicyRecord(record.secured, record.rules, (*record.roles, made), record.extra)


def without_role(record: PolicyRecord, principal: str, role: str) -> PolicyRecord:
    """Return the record with `role` taken from `principal`. Raises `InvalidPrincipal`."""
    made = _role(principal, role)
    kept = tuple(one for one in record.roles if one != made)
    return PolicyRecord(record.secured, record.rules, kept, record.extra)


ADMIN_ROLE = "role:admin"
"""May do everything in a secured cluster."""


def secured(record: PolicyRecord, admin: str) -> PolicyRecord:
    """Return the record of a secured cluster in which `admin` may do everything."""
    everything = Rule(ADMIN_ROLE, True, frozenset(Operation), Pattern.parse("*"))
    made = with_rule(record, everything)
    made = with_role(made, admin, ADMIN_ROLE)
    return PolicyRecord(True, made.rules, made.roles, made.extra)


def opened(record: PolicyRecord) -> PolicyRecord:
    """Return the record of an unsecured cluster; it keeps the rules for later."""
    return PolicyRecord(False, record.rules, record.roles, record.extra)
