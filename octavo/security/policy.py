"""The policy as it stands in the metadata: one record, changed by compare-and-set.

    /octavo/security/policy    secured, rules, roles

One record and not one for each rule, so that a process has either the rights before a change or
those after it, and the record's version names them. It holds some ten thousand rules; prefixes and
roles keep them few. Rules stand there in words, as people write them.
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
    """A rule, in words: `operations` as `produce,consume` or `all`."""

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
    """What the policy's record holds. `extra`: what a newer version has put there."""

    secured: bool = False
    rules: tuple[RuleRecord, ...] = ()
    roles: tuple[RoleRecord, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class Read(NamedTuple):
    """A policy, and the version of its record; −1 when there is none."""

    policy: Policy
    version: int


class PolicyStore:
    """Reads and changes the record."""

    def __init__(self, store: MetadataStore) -> None:
        self._record = SharedRecord(store, POLICY_PATH, PolicyRecord)

    async def read(self) -> Read:
        """As it stands. Raises `MetadataUnavailable`, `BadRecord`."""
        record, version = await self._record.read()
        return Read(OPEN if version < 0 else policy_of(record), version)

    async def read_record(self) -> tuple[PolicyRecord, int]:
        """In words, as it stands, and its version; −1 when there is none. Raises as `read`."""
        return await self._record.read()

    async def change(self, make: Callable[[PolicyRecord], PolicyRecord]) -> Read:
        """Set it to `make(what stands there)`; nothing is written when that is the same.

        Raises `MetadataUnavailable` (it may have been changed, look), `BadRecord`, `RecordTooLong`.
        """
        record, version = await self._record.change(make)
        return Read(policy_of(record), version)


def policy_of(record: PolicyRecord) -> Policy:
    """What the record says. Raises `BadRecord`: half a policy is none."""
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
    """A rule as it is stored."""
    names = "all" if rule.operations == ALL else ",".join(sorted(rule.operations))
    return RuleRecord(rule.principal, rule.allow, names, str(rule.pattern))


def make_rule(principal: str, operations: str, resource: str, *, allow: bool) -> Rule:
    """A rule from the words of a person. Raises `InvalidRule`, `InvalidPrincipal`."""
    return Rule(
        checked_principal(principal), allow, parse_operations(operations), Pattern.parse(resource)
    )


def record_of(
    rules: Iterable[Rule], roles: Iterable[tuple[str, str]], extra: Mapping[str, Any]
) -> PolicyRecord:
    """The record of a secured cluster with these rules and roles, each once. Raises
    `InvalidPrincipal`."""
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
    """The record with one rule more; the same when it has it already."""
    made = rule_record(rule)
    if made in record.rules:
        return record
    return PolicyRecord(record.secured, (*record.rules, made), record.roles, record.extra)


def without_rule(record: PolicyRecord, rule: Rule) -> PolicyRecord:
    """The record without a rule; the same when it has none such."""
    made = rule_record(rule)
    kept = tuple(one for one in record.rules if one != made)
    return PolicyRecord(record.secured, kept, record.roles, record.extra)


def _role(principal: str, role: str) -> RoleRecord:
    return RoleRecord(
        checked_principal(principal, "user", "group"), checked_principal(role, "role")
    )


def with_role(record: PolicyRecord, principal: str, role: str) -> PolicyRecord:
    """The record in which a user or group has a role, too. Raises `InvalidPrincipal`."""
    made = _role(principal, role)
    if made in record.roles:
        return record
    return PolicyRecord(record.secured, record.rules, (*record.roles, made), record.extra)


def without_role(record: PolicyRecord, principal: str, role: str) -> PolicyRecord:
    """The record in which they have it not. Raises `InvalidPrincipal`."""
    made = _role(principal, role)
    kept = tuple(one for one in record.roles if one != made)
    return PolicyRecord(record.secured, record.rules, kept, record.extra)


ADMIN_ROLE = "role:admin"
"""May do everything, from the moment that a cluster is secured."""


def secured(record: PolicyRecord, admin: str) -> PolicyRecord:
    """The record of a secured cluster in which `admin` may do everything."""
    everything = Rule(ADMIN_ROLE, True, frozenset(Operation), Pattern.parse("*"))
    made = with_rule(record, everything)
    made = with_role(made, admin, ADMIN_ROLE)
    return PolicyRecord(True, made.rules, made.roles, made.extra)


def opened(record: PolicyRecord) -> PolicyRecord:
    """The record of a cluster that is not secured; its rules wait."""
    return PolicyRecord(False, record.rules, record.roles, record.extra)
