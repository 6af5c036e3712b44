"""The policy's record, and its copy in a process: fresh, last known, closed when in doubt."""

import asyncio
from pathlib import Path

import pytest

from octavo.metadata.opening import open_store
from octavo.metadata.store import BadRecord, MetadataStore, MetadataUnavailable
from octavo.security import record as record_module
from octavo.security.authority import Authority
from octavo.security.policy import (
    POLICY_PATH,
    PolicyRecord,
    PolicyStore,
    make_rule,
    secured,
    with_rule,
    without_rule,
)
from octavo.security.principal import Identity
from octavo.security.rules import CLUSTER, Kind, Operation, Resource

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
