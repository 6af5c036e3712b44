"""Access rules: each step of the decision, by an example."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.opening import open_store
from octavo.metadata.store import BadRecord, MetadataStore, MetadataUnavailable
from octavo.metadata.topic_records import decode_record
from octavo.security import policy as policy_module
from octavo.security import record as record_module
from octavo.security.audit import DENIALS_TOLD, WINDOW_S, AuditBook, Decided, Deed, deed_of
from octavo.security.authority import Authority
from octavo.security.policy import (
    POLICY_PATH,
    PolicyRecord,
    PolicyStore,
    make_rule,
    policy_in_turns,
    policy_of,
    record_of,
    rule_record,
    secured,
    with_rule,
    without_rule,
)
from octavo.security.principal import ANONYMOUS, Identity, InvalidPrincipal, checked_principal
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
from octavo.security.settings import SecurityConfig, SecurityError

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


ALICE_AUTHORITY, ADMIN = Identity("user:alice"), Identity("user:admin")
RULE = make_rule("user:alice", "produce", "topic:payments/*", allow=True)


@pytest.fixture
async def store(tmp_path: Path):
    store = open_store(f"file://{tmp_path}/metadata.db")
    await store.start()
    yield store
    await store.close()


@pytest.fixture
async def policies(store: MetadataStore) -> PolicyStore:
    return PolicyStore(store)


@pytest.fixture
async def authority(store: MetadataStore):
    authority = Authority(store)
    await authority.start()
    yield authority
    await authority.close()


async def changed(authority: Authority, generation: int) -> None:
    async with asyncio.timeout(5):
        await authority.until_changed(generation)


async def test_without_a_record_the_cluster_is_open(authority):
    assert not authority.secured
    assert authority.decide(ALICE_AUTHORITY, Operation.PRODUCE, ORDERS).allowed


async def test_a_cluster_is_secured_and_only_its_admin_may_anything(authority, policies):
    generation = authority.generation
    await policies.change(lambda record: secured(record, "user:admin"))
    await changed(authority, generation)
    assert authority.decide(ADMIN, Operation.ADMIN, CLUSTER).allowed
    assert not authority.decide(ALICE_AUTHORITY, Operation.PRODUCE, ORDERS).allowed


async def test_a_right_is_given_and_withdrawn(authority, policies):
    await policies.change(lambda record: secured(record, "user:admin"))
    generation = authority.generation
    await policies.change(lambda record: with_rule(record, RULE))
    while not authority.decide(ALICE_AUTHORITY, Operation.PRODUCE, ORDERS).allowed:
        await changed(authority, generation)
        generation = authority.generation
    generation = authority.generation
    await policies.change(lambda record: without_rule(record, RULE))
    await changed(authority, generation)
    assert not authority.decide(ALICE_AUTHORITY, Operation.PRODUCE, ORDERS).allowed


async def test_the_same_rule_again_writes_nothing(policies):
    first = await policies.change(lambda record: with_rule(record, RULE))
    again = await policies.change(lambda record: with_rule(record, RULE))
    assert again.version == first.version


async def test_changes_of_two_at_once_are_both_there(policies):
    rules = [make_rule(f"user:u{n}", "produce", "topic:*", allow=True) for n in range(10)]
    await asyncio.gather(
        *(policies.change(lambda record, rule=rule: with_rule(record, rule)) for rule in rules)
    )
    assert set((await policies.read()).policy.rules) == set(rules)


async def test_a_policy_that_vanishes_closes_the_cluster(authority, policies, store):
    generation = authority.generation
    await policies.change(lambda record: secured(record, "user:admin"))
    await changed(authority, generation)
    generation = authority.generation
    await store.delete(POLICY_PATH)
    await changed(authority, generation)
    assert not authority.decide(ADMIN, Operation.DESCRIBE, CLUSTER).allowed


async def test_a_policy_made_anew_is_not_taken_for_the_former_one(authority, policies, store):
    await policies.change(lambda record: with_rule(record, RULE))
    generation = authority.generation
    await store.delete(POLICY_PATH)
    await policies.change(lambda record: secured(record, "user:admin"))
    while not authority.secured:
        await changed(authority, generation)
        generation = authority.generation


async def test_a_policy_that_cannot_be_read_closes_the_cluster(authority, policies, store):
    generation = authority.generation
    await policies.change(lambda record: secured(record, "user:admin"))
    await changed(authority, generation)
    generation = authority.generation
    await store.put(POLICY_PATH, b"\xc1", -1)
    await changed(authority, generation)
    assert not authority.decide(ADMIN, Operation.DESCRIBE, CLUSTER).allowed


async def test_nobody_serves_with_a_policy_that_cannot_be_read(store):
    await store.create(POLICY_PATH, b"\xc1")
    with pytest.raises(BadRecord):
        await Authority(store).start()


async def test_a_watch_that_never_sounds_is_made_up_for(store, policies, monkeypatch):
    monkeypatch.setattr(record_module, "REREAD_S", 0.05)
    monkeypatch.setattr(store, "watch", lambda path, on_change: _NoWatch())
    authority = Authority(store)
    await authority.start()
    try:
        generation = authority.generation
        await policies.change(lambda record: secured(record, "user:admin"))
        await changed(authority, generation)
        assert authority.secured
    finally:
        await authority.close()


async def test_while_the_store_is_away_rights_are_those_known_last(
    authority, policies, monkeypatch
):
    monkeypatch.setattr(record_module, "REREAD_S", 0.02)
    generation = authority.generation
    await policies.change(lambda record: secured(record, "user:admin"))
    await changed(authority, generation)

    asked = asyncio.Event()

    async def away():
        asked.set()
        raise MetadataUnavailable("away")

    monkeypatch.setattr(authority._policies, "read", away)
    authority._record._alarm.set()
    async with asyncio.timeout(5):
        await asked.wait()
    assert authority.decide(ADMIN, Operation.ADMIN, CLUSTER).allowed
    assert not authority.decide(ALICE_AUTHORITY, Operation.PRODUCE, ORDERS).allowed


def test_what_a_newer_version_has_put_there_is_kept():
    record = PolicyRecord(extra={"later": 1})
    assert with_rule(record, RULE).extra == {"later": 1}
    assert without_rule(with_rule(record, RULE), RULE).extra == {"later": 1}
    assert secured(record, "user:admin").extra == {"later": 1}


class _NoWatch:
    def cancel(self) -> None:
        pass


async def test_a_policy_that_did_not_change_is_not_read_into_rules_again(
    policies: PolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every broker and bookie did so every two seconds: with 10,000 rules 0.2 s of its loop."""
    decoded = made = 0
    policy_in_turns = policy_module.policy_in_turns

    def counted_decode(*given: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return decode_record(*given)

    async def counted_policy(record: PolicyRecord) -> Any:
        nonlocal made
        made += 1
        return await policy_in_turns(record)

    await policies.change(lambda record: secured(record, "user:admin"))
    monkeypatch.setattr(record_module, "decode_record", counted_decode)
    monkeypatch.setattr(policy_module, "policy_in_turns", counted_policy)
    reader = PolicyStore(policies._record._store)
    found = [(await reader.read()).policy for _ in range(5)]
    assert (decoded, made) == (1, 1)
    await policies.change(lambda record: with_rule(record, RULE))
    found.append((await reader.read()).policy)
    assert len(found[-1].rules) == len(found[0].rules) + 1


async def test_rules_are_read_in_turns(
    policies: PolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "RULES_A_TURN", 3)
    rules = [make_rule("user:alice", "produce", f"topic:a/t{n}", allow=True) for n in range(10)]
    held = [("user:alice", f"role:r{n}") for n in range(4)]
    record = record_of([rule_record(one) for one in rules], held, {})
    turn, read_in, loop = 0, Counter[int](), asyncio.get_running_loop()
    make = policy_module.make_rule

    def counted(*given: str, allow: bool) -> Rule:
        read_in[turn] += 1
        return make(*given, allow=allow)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    monkeypatch.setattr(policy_module, "make_rule", counted)
    loop.call_soon(next_turn)
    assert await policy_in_turns(record) == policy_of(record)
    del read_in[turn]  # all is read in one turn
    assert sorted(read_in.values()) == [1, 3, 3, 3]


ALICE_AUDIT = Identity("user:alice", source="token")


def deed(operation: Operation, allowed: bool = True, who: str = "alice", peer: str = "p") -> Deed:
    return deed_of(Decided(Identity(f"user:{who}"), operation, ORDERS, allowed, peer))


def test_what_administers_is_told_each_time() -> None:
    book = AuditBook()
    for operation in (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ADMIN):
        assert all(book.note(deed(operation), 0.0) for _ in range(50))
    assert book.due(1000.0) == []


def test_producing_is_told_once_and_then_counted_once_a_minute() -> None:
    book = AuditBook()
    assert [book.note(deed(Operation.PRODUCE), at / 10) for at in range(5)] == [True] + [False] * 4
    assert book.due(WINDOW_S - 1) == []
    assert [(told.deed.operation, told.count) for told in book.due(WINDOW_S)] == [("produce", 4)]
    assert not book.note(deed(Operation.PRODUCE), WINDOW_S + 1), "it goes on"
    assert [told.count for told in book.due(2 * WINDOW_S)] == [1]
    assert book.due(3 * WINDOW_S) == []
    assert book.note(deed(Operation.PRODUCE), 3 * WINDOW_S + 1), "it was over"


def test_denials_are_told_until_there_are_many() -> None:
    book = AuditBook()
    told = [book.note(deed(Operation.PRODUCE, False), 0.0) for _ in range(DENIALS_TOLD + 7)]
    assert sum(told) == DENIALS_TOLD
    assert book.note(deed(Operation.PRODUCE, False, peer="q"), 0.0), "from elsewhere"
    assert [(one.deed.allowed, one.count) for one in book.due(WINDOW_S)] == [(False, 7)]
    assert book.note(deed(Operation.PRODUCE, False), WINDOW_S + 1), "a new minute"


def test_what_nodes_may_and_what_is_only_looked_at_is_not_told() -> None:
    book = AuditBook()
    node = Identity("node:b1")
    assert not book.wants(node, Operation.PRODUCE, True)
    assert book.wants(node, Operation.PRODUCE, False)
    assert not book.wants(ALICE_AUDIT, Operation.DESCRIBE, True)
    assert book.wants(ALICE_AUDIT, Operation.DESCRIBE, False)
    assert book.wants(ALICE_AUDIT, Operation.CONSUME, True)


@given(
    steps=st.lists(
        st.tuples(
            st.floats(0, 40),
            st.sampled_from([Operation.PRODUCE, Operation.CONSUME]),
            st.booleans(),
            st.sampled_from("abcde"),
        ),
        max_size=150,
    ),
    kept=st.integers(1, 4),
)
def test_each_deed_is_told_or_counted_once(
    steps: list[tuple[float, Operation, bool, str]], kept: int
) -> None:
    """Also with room for few; and never more subjects than there is room for."""
    book = AuditBook(kept)
    now_s = 0.0
    done: Counter[tuple[str, bool]] = Counter()
    told: Counter[tuple[str, bool]] = Counter()
    for pause_s, operation, allowed, who in steps:
        now_s += pause_s
        one = deed(operation, allowed, who)
        done[one.principal, allowed] += 1
        if book.note(one, now_s):
            told[one.principal, allowed] += 1
        for found in book.due(now_s):
            told[found.deed.principal, found.deed.allowed] += found.count
        assert len(book._counted) <= kept
    for found in book.due(now_s, all_of_it=True):
        told[found.deed.principal, found.deed.allowed] += found.count
    assert told == done


OIDC: dict[str, Any] = {"jwt_issuer": "https://login.example", "jwt_audience": "octavo"}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"certificate_principal": "email"}, "use cn, dn or uri"),
        ({"jwks_url": "https://a/keys"}, "give jwt_issuer too"),
        ({"jwks_url": "https://a/keys", "jwt_issuer": "x"}, "give jwt_audience too"),
        ({"jwt_keys_file": "k", **OIDC, "jwks_url": "https://a/keys"}, "not both"),
        ({"jwt_issuer": "x"}, "give jwks_url or jwt_keys_file too"),
        ({"jwt_keys_file": "k", **OIDC, "jwt_issuer": "octavo"}, "issuer of the cluster's own"),
        ({"jwt_keys_file": "k", **OIDC, "jwt_groups_claim": ""}, "name a claim"),
        *(({**OIDC, "jwks_url": url}, "use https://")
          for url in ("http://login.example/keys", "file:///etc/passwd", "https://", "keys",
                      "http://127.0.0.1.evil.example/k", "http://[::1", "ftp://127.0.0.1/k")),
        ({"verified_max": 0}, "use 1 or more"),
        ({"files_reload_ms": 0}, "use 1 or more"),
        ({"password_checks_waiting_max": 7}, "use 8 or more"),
    ],
)  # fmt: skip
def test_refused_with_what_would_do(how, told):
    with pytest.raises(SecurityError, match=told):
        SecurityConfig(**how)


@pytest.mark.parametrize(
    "url", ["https://a/keys", "http://127.0.0.1:80/k", "http://[::1]/k", "http://localhost/k"]
)
def test_where_keys_may_come_from(url):
    assert SecurityConfig(**{**OIDC, "jwks_url": url}).jwks_url == url
