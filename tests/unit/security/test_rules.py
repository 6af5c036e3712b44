"""Access rules: each step of the decision, by an example."""

import random
import sys

import pytest

from octavo.security.policy import make_rule
from octavo.security.principal import (
    ANONYMOUS,
    Identity,
    InvalidPrincipal,
    checked_principal,
)
from octavo.security.rules import (
    CLUSTER,
    InvalidRule,
    Kind,
    Operation,
    Pattern,
    Policy,
    Resource,
    Rule,
    parse_operations,
)

ALICE = Identity("user:alice", frozenset({"group:staff"}))
ORDERS = Resource(Kind.TOPIC, "payments/orders")
PRODUCE, CONSUME, DESCRIBE = Operation.PRODUCE, Operation.CONSUME, Operation.DESCRIBE


def policy(*rules: tuple[bool, str, str, str], roles=None, secured: bool = True) -> Policy:
    made = [make_rule(who, what, which, allow=allow) for allow, who, what, which in rules]
    return Policy(made, roles, secured=secured)


def may(found: Policy, identity: Identity, operation: Operation, resource: Resource) -> bool:
    return found.decide(identity, operation, resource).allowed


def test_without_a_rule_nothing_is_allowed():
    assert not may(policy(), ALICE, PRODUCE, ORDERS)


def test_a_cluster_that_is_not_secured_allows_everything():
    assert may(policy(secured=False), ANONYMOUS, Operation.ADMIN, CLUSTER)


def test_processes_of_the_cluster_may_do_everything():
    assert may(policy(), Identity("node:broker-1", source="node"), Operation.ADMIN, CLUSTER)


@pytest.mark.parametrize("who", ["user:alice", "group:staff", "role:tellers", "user:*", "*"])
def test_a_rule_reaches_a_caller_by_every_name_it_has(who):
    found = policy((True, who, "produce", "topic:payments/orders"),
                   roles={"group:staff": ["role:tellers"]})  # fmt: skip
    assert may(found, ALICE, PRODUCE, ORDERS)
    assert not may(found, ALICE, CONSUME, ORDERS)


def test_anybody_who_is_known_is_not_anybody():
    found = policy((True, "user:*", "produce", "*"))
    assert not may(found, ANONYMOUS, PRODUCE, ORDERS)


def test_a_deny_wins_over_every_allow():
    found = policy(
        (True, "user:alice", "all", "*"), (False, "group:staff", "produce", "topic:payments/*")
    )
    assert not may(found, ALICE, PRODUCE, ORDERS)
    assert may(found, ALICE, CONSUME, ORDERS)


def test_who_may_do_anything_may_see_that_it_is_there():
    found = policy((True, "user:alice", "consume", "topic:payments/orders"))
    assert may(found, ALICE, DESCRIBE, ORDERS)
    assert not may(found, ALICE, DESCRIBE, Resource(Kind.TOPIC, "payments/other"))


def test_to_deny_one_thing_does_not_hide_the_rest():
    found = policy(
        (True, "user:alice", "describe", "topic:payments/*"),
        (False, "user:alice", "produce", "topic:payments/*"),
    )
    assert may(found, ALICE, DESCRIBE, ORDERS)


def test_a_prefix_is_of_names_and_an_exact_name_is_exact():
    found = policy((True, "user:alice", "consume", "topic:pay*"))
    assert may(found, ALICE, CONSUME, ORDERS)
    exact = policy((True, "user:alice", "consume", "topic:payments/order"))
    assert not may(exact, ALICE, CONSUME, ORDERS)


def test_a_rule_of_one_kind_says_nothing_of_another():
    found = policy((True, "user:alice", "all", "topic:*"))
    assert not may(found, ALICE, CONSUME, Resource(Kind.SUBSCRIPTION, "payments/orders/me"))


@pytest.mark.parametrize(
    "text",
    ["topic", "topic:", "topic:a", "topic:a/b/c", "topic:a*b/c", "cluster:x", "bookies:1", "",
     "*:a", "namespace:a/b", "subscription:a", "topic:/b", "what:ever", "topic:a/b/c*"],
)  # fmt: skip
def test_resources_that_there_are_not(text):
    with pytest.raises(InvalidRule, match="a resource is"):
        Pattern.parse(text)


@pytest.mark.parametrize(
    "text",
    ["cluster", "bookies", "*", "topic:a/b", "topic:*", "topic:a/*", "topic:a/b*", "topic:a*",
     "namespace:a", "namespace:*", "subscription:a/b", "subscription:a/b/c", "subscription:a/b/*",
     "transaction:t-*"],
)  # fmt: skip
def test_a_resource_is_written_as_it_was_read(text):
    assert str(Pattern.parse(text)) == text


@pytest.mark.parametrize("text", ["alice", "user:", "user:a b", "user:a\n", "USER:a", "", "x:y"])
def test_principals_that_there_are_not(text):
    with pytest.raises(InvalidPrincipal):
        checked_principal(text)


def test_operations_that_there_are_not():
    with pytest.raises(InvalidRule, match="operations are"):
        parse_operations("produce,devour")


def test_explaining_names_what_comes_near():
    found = policy(
        (True, "user:alice", "consume", "topic:payments/orders"),
        (True, "user:alice", "produce", "topic:payments/other"),
    )
    lines = found.explain(ALICE, PRODUCE, ORDERS)
    assert lines[0].startswith("no: no rule allows user:alice to produce topic:payments/orders")
    assert any("not about produce" in line for line in lines)
    assert any("not about payments/orders" in line for line in lines)


def by_each_rule(found: Policy, identity: Identity, operation: Operation, resource: Resource):
    """Return the deciding rule, and whether it allows, by looking at every rule."""
    allowed = None
    for who in sorted(found.principals(identity)):
        for rule in found.rules:
            if rule.principal != who or not rule.covers(operation):
                continue
            if rule.pattern.fits(resource):
                if not rule.allow:
                    return False, rule
                allowed = allowed or rule
    return allowed is not None, allowed


@pytest.mark.parametrize("seed", range(20))
def test_rules_found_by_resource_decide_as_a_look_at_every_rule(seed: int) -> None:
    rng = random.Random(seed)
    names = ["a", "ab", "abc", "b", "a/b", "a/bc", "ab/c", "a/b/c"]

    def pattern() -> str:
        kind = rng.choice(["topic", "namespace", "subscription", "cluster", "*"])
        if kind in ("cluster", "*"):
            return kind
        name = rng.choice(names)
        steps = {"topic": (2,), "namespace": (1,), "subscription": (2, 3)}[kind]
        exact = len(name.split("/")) in steps and rng.random() < 0.5
        return f"{kind}:{name}" if exact else f"{kind}:{name[: rng.randint(1, 4)]}*"

    rules: list[Rule] = []
    while len(rules) < 30:
        who, what = rng.choice(["user:alice", "group:staff", "*"]), rng.choice(["all", "produce"])
        try:
            rules.append(make_rule(who, what, pattern(), allow=rng.random() < 0.7))
        except InvalidRule:
            continue
    found = Policy(rules, secured=True)
    asked = [CLUSTER, *(Resource(kind, name) for kind in Kind for name in names)]
    for resource in asked:
        if resource.kind is Kind.ANYTHING:
            continue
        for operation in (PRODUCE, DESCRIBE):
            told = found.decide(ALICE, operation, resource)
            assert (told.allowed, told.rule) == by_each_rule(found, ALICE, operation, resource)


def test_a_decision_looks_at_no_rule_of_another_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of topics asks for each name: with 10,000 rules it went through 10,000 each time."""
    looks = 0
    covers = Rule.covers

    def counted(rule: Rule, operation: Operation) -> bool:
        nonlocal looks
        looks += 1
        return covers(rule, operation)

    names = [f"public/t{n:04}" for n in range(1_000)]
    exact = [make_rule("*", "produce", f"topic:{name}", allow=True) for name in names]
    begun = [make_rule("*", "produce", f"topic:{name}*", allow=True) for name in names]
    found = Policy([*exact, *begun], secured=True)
    monkeypatch.setattr(Rule, "covers", counted)
    for name in names:
        assert may(found, ALICE, PRODUCE, Resource(Kind.TOPIC, name))
    assert looks <= 2 * len(names)


BEGINNINGS = [
    Resource(kind, name)
    for kind in (Kind.TOPIC, Kind.SUBSCRIPTION, Kind.NAMESPACE)
    for name in ("", "a/", "aa/", "a/b", "b/", "b/a/", "c/")
]
NAMES = ("a", "aa", "b", "a/b", "a/bb", "aa/b", "b/a", "b/a/s", "a/b/s")


def meets(pattern: Pattern, begins: Resource) -> bool:
    """Whether the pattern may match a resource whose name begins as `begins` does."""
    if pattern.kind is not begins.kind:
        return pattern.kind is Kind.ANYTHING
    if pattern.name.startswith(begins.name):
        return True
    return pattern.prefix and begins.name.startswith(pattern.name)


@pytest.mark.parametrize("seed", range(50))
def test_a_list_may_show_something_if_one_of_all_rules_says_so(seed: int) -> None:
    rng = random.Random(seed)
    rules = []
    for _ in range(rng.randrange(6)):
        kind = rng.choice([Kind.TOPIC, Kind.SUBSCRIPTION, Kind.NAMESPACE, Kind.ANYTHING])
        name = "" if kind is Kind.ANYTHING else rng.choice(NAMES)
        pattern = Pattern(kind, name, bool(name) and rng.random() < 0.5)
        who = rng.choice(["user:alice", "group:staff", "user:bob"])
        rules.append(Rule(who, rng.random() < 0.6, frozenset({PRODUCE}), pattern))
    found = Policy(rules, secured=True)
    for begins in BEGINNINGS:
        wanted = any(
            rule.allow and rule.principal != "user:bob" and meets(rule.pattern, begins)
            for rule in rules
        )
        assert found.may_see_some(ALICE, begins) is wanted, (rules, begins)


def test_a_list_goes_through_no_rule_that_is_of_something_else() -> None:
    """A list of 1,000 namespaces went through 10,000 rules for each of them."""
    rules = [
        Rule("user:alice", True, frozenset({PRODUCE}), Pattern(Kind.TOPIC, f"n{n:05}/t", n % 2 > 0))
        for n in range(10_000)
    ]
    found = Policy(rules, secured=True)
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    found.may_see_some(ALICE, Resource(Kind.TOPIC, "n00000/"))  # sorts once
    sys.setprofile(count)
    try:
        seen = sum(
            found.may_see_some(ALICE, Resource(Kind.TOPIC, f"n{n:05}/"))
            for n in range(9_500, 10_500)
        )
    finally:
        sys.setprofile(None)
    assert seen == 500
    assert calls < 50_000, "50 for each"
