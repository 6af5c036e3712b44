"""Who may do what: each rule of deciding, by an example of it."""

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
