"""Decide whether a principal may do an operation to a resource, by rules. Pure.

A deny wins over any allow, and without a matching rule the answer is no. A caller that may do any
operation on a resource may also see that it exists (`describe`), as in Kafka.

    cluster                        nodes, metrics, ledgers
    namespace:payments             create and list topics, the namespace's policies
    topic:payments/orders          produce, consume, create, delete, alter, describe
    subscription:payments/orders/billing
    transaction:nightly-copy       bulk loads
    bookies                        the bookies' ports: read, write, admin
    topic:payments/*               every topic whose name begins so
    *                              everything
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from octavo.protocol.codes import OctavoError
from octavo.security.principal import ANY_USER, ANYBODY, Identity

DECISIONS_KEPT = 8192
"""The most cached decisions; then the cache is emptied."""


class InvalidRule(OctavoError):
    name = "invalid-rule"
    http_status = 422


class Operation(enum.StrEnum):
    PRODUCE = "produce"
    CONSUME = "consume"
    DESCRIBE = "describe"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    READ = "read"
    """Only for bookies: read entries by ledger id."""
    WRITE = "write"
    """Only for bookies: write entries."""
    ADMIN = "admin"


class Kind(enum.StrEnum):
    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    TRANSACTION = "transaction"
    BOOKIES = "bookies"
    ANYTHING = "*"
    """Only in rules: every resource."""


_NAMELESS = (Kind.CLUSTER, Kind.BOOKIES, Kind.ANYTHING)
_STEPS = {Kind.NAMESPACE: (1,), Kind.TOPIC: (2,), Kind.SUBSCRIPTION: (2, 3), Kind.TRANSACTION: (1,)}
RESOURCE_RULE = (
    "a resource is cluster, bookies, namespace:NS, topic:NS/TOPIC, subscription:NS/TOPIC/SUB, "
    "subscription:NS/GROUP, transaction:ID, or * for all; a name that ends in * stands for every "
    "name that begins so"
)
OPERATION_RULE = "operations are " + ", ".join(Operation) + ", and all"


class Resource(NamedTuple):
    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)


CLUSTER = Resource(Kind.CLUSTER)
BOOKIES = Resource(Kind.BOOKIES)


class Pattern(NamedTuple):
    kind: Kind
    name: str = ""
    prefix: bool = False

    def __str__(self) -> str:
        if self.kind in _NAMELESS:
            return str(self.kind)
        return f"{self.kind}:{self.name}{'*' if self.prefix else ''}"

    @classmethod
    def parse(cls, text: str) -> Pattern:
        kind_text, colon, name = text.partition(":")
        try:
            kind = Kind(kind_text)
        except ValueError:
            kind = None
        if kind is None or bool(colon) != (kind not in _NAMELESS) or (colon and not name):
            raise InvalidRule(f"{text[:60]!r} is not a resource: {RESOURCE_RULE}")
        prefix = name.endswith("*")
        name = name.removesuffix("*")
        steps = name.split("/")
        allowed = _STEPS.get(kind, (1,))
        fits = len(steps) <= max(allowed) if prefix else len(steps) in allowed
        if kind not in _NAMELESS and not (fits and "*" not in name and (prefix or all(steps))):
            raise InvalidRule(f"{text[:60]!r} is not a resource: {RESOURCE_RULE}")
        return cls(kind, name, prefix)

    def fits(self, resource: Resource) -> bool:
        if self.kind is Kind.ANYTHING:
            return True
        if self.kind is not resource.kind:
            return False
        return resource.name.startswith(self.name) if self.prefix else resource.name == self.name


_ANY = Pattern(Kind.ANYTHING)


def parse_resource(text: str) -> Resource:
    """Parse text such as `topic:payments/orders`. Raises `InvalidRule`, also for a `*`."""
    found = Pattern.parse(text)
    if found.prefix or found.kind is Kind.ANYTHING:
        raise InvalidRule(f"{text[:60]!r} stands for several resources: name a single resource")
    return Resource(found.kind, found.name)


ALL = frozenset(Operation)


def parse_operations(text: str) -> frozenset[Operation]:
    if text == "all":
        return ALL
    try:
        return frozenset(Operation(one.strip()) for one in text.split(","))
    except ValueError:
        raise InvalidRule(f"{text[:60]!r}: {OPERATION_RULE}") from None


@dataclass(frozen=True, slots=True)
class Rule:
    principal: str
    allow: bool
    operations: frozenset[Operation]
    pattern: Pattern

    def __str__(self) -> str:
        names = "all" if self.operations == ALL else ",".join(sorted(self.operations))
        return f"{'allow' if self.allow else 'deny'} {self.principal} {names} {self.pattern}"

    def covers(self, operation: Operation) -> bool:
        """Return whether the rule is about `operation`. To allow any operation is to allow
        `describe`.
        """
        if operation in self.operations:
            return True
        return self.allow and operation is Operation.DESCRIBE


class Decision(NamedTuple):
    """An answer and its rule.

    Without a rule (None) the answer is no, unless the caller is a node or the cluster is not
    secured.
    """

    allowed: bool
    rule: Rule | None
    reason: str


class _RulesOf:
    """A principal's rules, found by resource: it may have thousands, and a list asks about
    thousands of names.
    """

    def __init__(self) -> None:
        self._by: dict[Pattern, list[tuple[int, Rule]]] = {}
        self._lengths: dict[Kind, set[int]] = {}
        self._allowed: dict[Kind, list[str]] = {}
        """The names in rules that allow something."""
        self._is_sorted = True

    def add(self, place: int, rule: Rule) -> None:
        pattern = _ANY if rule.pattern.kind is Kind.ANYTHING else rule.pattern
        self._by.setdefault(pattern, []).append((place, rule))
        if pattern.prefix:
            self._lengths.setdefault(pattern.kind, set()).add(len(pattern.name))
        if rule.allow:
            self._allowed.setdefault(pattern.kind, []).append(pattern.name)
            self._is_sorted = False

    def may_see_some(self, begins: Resource) -> bool:
        if not self._is_sorted:
            for names in tuple(self._allowed.values()):
                names.sort()
            self._is_sorted = True
        kind, start = begins
        if Kind.ANYTHING in self._allowed:
            return True
        named = self._allowed.get(kind, [])
        place = bisect_left(named, start)
        if place < len(named) and named[place].startswith(start):
            return True
        wider = (
            Pattern(kind, start[:length], True)
            for length in self._lengths.get(kind, ())
            if length <= len(start)
        )
        return any(rule.allow for pattern in wider for _, rule in self._by.get(pattern, ()))

    def fitting(self, resource: Resource) -> list[Rule]:
        kind, name = resource
        asked = [_ANY, Pattern(kind, name)]
        asked += [
            Pattern(kind, name[:length], True)
            for length in self._lengths.get(kind, ())
            if length <= len(name)
        ]
        found = [one for pattern in asked for one in self._by.get(pattern, ())]
        return [rule for _, rule in sorted(found, key=lambda one: one[0])]


class Policy:
    def __init__(
        self,
        rules: Iterable[Rule] = (),
        roles: Mapping[str, Iterable[str]] | None = None,
        *,
        secured: bool = False,
    ) -> None:
        """Hold rules; `roles`: each principal's roles, such as `user:alice` → `role:operators`."""
        self.secured = secured
        self.rules = tuple(rules)
        self.roles = {who: frozenset(names) for who, names in (roles or {}).items()}
        self._of: dict[str, _RulesOf] = {}
        for place, rule in enumerate(self.rules):
            self._of.setdefault(rule.principal, _RulesOf()).add(place, rule)
        self._decided: dict[tuple[str, frozenset[str], Operation, Resource], Decision] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        mine = (self.secured, self.rules, self.roles)
        return mine == (other.secured, other.rules, other.roles)

    __hash__ = None  # type: ignore[assignment]

    def principals(self, identity: Identity) -> frozenset[str]:
        found = {identity.name, *identity.groups}
        for one in tuple(found):
            found |= self.roles.get(one, frozenset())
        found.add(ANYBODY)
        if identity.name.startswith("user:"):
            found.add(ANY_USER)
        return frozenset(found)

    def rules_of(self, identity: Identity) -> list[Rule]:
        who = self.principals(identity)
        return [rule for rule in self.rules if rule.principal in who]

    def decide(self, identity: Identity, operation: Operation, resource: Resource) -> Decision:
        """Decide by the rules. In an unsecured cluster, and for a node, the answer is yes."""
        if not self.secured:
            return _OPEN
        if identity.is_node:
            return _NODE
        key = (identity.name, identity.groups, operation, resource)
        found = self._decided.get(key)
        if found is None:
            if len(self._decided) >= DECISIONS_KEPT:
                self._decided.clear()
            found = self._decided[key] = self._decide(identity, operation, resource)
        return found

    def may_see_some(self, identity: Identity, begins: Resource) -> bool:
        """Return whether a rule may allow `describe` on some resource whose name begins as
        `begins`.

        A list asks this first, then decides for each entry. As it looks at the rules only, it does
        not reveal which resources exist.
        """
        if not self.secured or identity.is_node:
            return True
        return any(
            rules.may_see_some(begins)
            for who in self.principals(identity)
            if (rules := self._of.get(who)) is not None
        )

    def _decide(self, identity: Identity, operation: Operation, resource: Resource) -> Decision:
        allowed: Rule | None = None
        for who in sorted(self.principals(identity)):
            rules = self._of.get(who)
            for rule in () if rules is None else rules.fitting(resource):
                if rule.covers(operation):
                    if not rule.allow:
                        return Decision(False, rule, f"the rule “{rule}” denies it")
                    allowed = allowed or rule
        if allowed is not None:
            return Decision(True, allowed, f"the rule “{allowed}” allows it")
        return Decision(False, None, f"no rule allows {identity.name} to {operation} {resource}")

    def explain(self, identity: Identity, operation: Operation, resource: Resource) -> list[str]:
        decision = self.decide(identity, operation, resource)
        lines = [f"{'yes' if decision.allowed else 'no'}: {decision.reason}"]
        if not self.secured:
            return lines
        roles = sorted(one for one in self.principals(identity) if one.startswith("role:"))
        if identity.groups:
            lines.append(f"{identity.name} is in " + ", ".join(sorted(identity.groups)))
        if roles:
            lines.append(f"{identity.name} has " + ", ".join(roles))
        for rule in self.rules_of(identity):
            fits, covers = rule.pattern.fits(resource), rule.covers(operation)
            if rule == decision.rule:
                continue
            if fits and covers:
                lines.append(f"“{rule}” fits too")
            elif fits:
                lines.append(f"“{rule}” is about this resource, but not about {operation}")
            elif covers and rule.pattern.kind is resource.kind:
                lines.append(f"“{rule}” is about {operation}, but not about {resource.name}")
        if not self.rules_of(identity):
            lines.append(f"no rule names {identity.name}")
        return lines


_OPEN = Decision(True, None, "the cluster is not secured")
_NODE = Decision(True, None, "a process of the cluster may do everything")
CLOSED = Policy(secured=True)
OPEN = Policy()
