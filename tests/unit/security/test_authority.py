"""The policy's record, and its copy in a process: fresh, last known, closed when in doubt."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from octavo.metadata.opening import open_store
from octavo.metadata.store import BadRecord, MetadataStore, MetadataUnavailable
from octavo.metadata.topic_records import decode_record
from octavo.security import policy as policy_module
from octavo.security import record as record_module
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
from octavo.security.principal import Identity
from octavo.security.rules import CLUSTER, Kind, Operation, Resource, Rule

ALICE, ADMIN = Identity("user:alice"), Identity("user:admin")
ORDERS = Resource(Kind.TOPIC, "payments/orders")
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
    assert authority.decide(ALICE, Operation.PRODUCE, ORDERS).allowed


async def test_a_cluster_is_secured_and_only_its_admin_may_anything(authority, policies):
    generation = authority.generation
    await policies.change(lambda record: secured(record, "user:admin"))
    await changed(authority, generation)
    assert authority.decide(ADMIN, Operation.ADMIN, CLUSTER).allowed
    assert not authority.decide(ALICE, Operation.PRODUCE, ORDERS).allowed


async def test_a_right_is_given_and_withdrawn(authority, policies):
    await policies.change(lambda record: secured(record, "user:admin"))
    generation = authority.generation
    await policies.change(lambda record: with_rule(record, RULE))
    while not authority.decide(ALICE, Operation.PRODUCE, ORDERS).allowed:
        await changed(authority, generation)
        generation = authority.generation
    generation = authority.generation
    await policies.change(lambda record: without_rule(record, RULE))
    await changed(authority, generation)
    assert not authority.decide(ALICE, Operation.PRODUCE, ORDERS).allowed


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
    assert not authority.decide(ALICE, Operation.PRODUCE, ORDERS).allowed


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
