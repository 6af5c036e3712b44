"""Exclusive access of a producer: which producer has it, when it is lost, and what is durable."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.audit import BATCH_EVENTS_MAX, AuditWriter
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import (
    ExclusiveProducer,
    InvalidSettings,
    ProducerBusy,
    StaleProducerAccess,
)
from octavo.broker.state.format import State, access_op, encode, snapshot
from octavo.broker.state.producers import Access, AccessState, ProducerTable
from octavo.broker.types import TopicSettings
from octavo.metadata.topic_settings import NAMES, OFF, WORDS, check_policies, effective, resolved
from octavo.metadata.topics import Policies
from octavo.protocol.batch import read_header
from octavo.protocol.records import read_records

SESSION_MS = 1_000


def acquire(access: Access, who: str, now_ms: int = 0, *, fencing: bool = False) -> int:
    return access.acquire(who, now_ms, session_ms=SESSION_MS, fencing=fencing).epoch


def test_one_has_it_and_others_are_told() -> None:
    access = Access(AccessState())
    access.check(None, 0)
    with pytest.raises(StaleProducerAccess, match="nobody has it"):
        access.check(1, 0)
    epoch = acquire(access, "a")
    access.check(epoch, 10)
    with pytest.raises(ExclusiveProducer, match="'a' alone"):
        access.check(None, 10)
    with pytest.raises(ProducerBusy, match="'a' alone") as busy:
        acquire(access, "b", 20)
    assert busy.value.left_ms == SESSION_MS - 10
    for wrong in (epoch - 1, epoch + 1):
        with pytest.raises(StaleProducerAccess, match="'a' has it"):
            access.check(wrong, 20)


def test_the_same_name_again_fences_its_former_self() -> None:
    access = Access(AccessState())
    first = acquire(access, "a")
    second = acquire(access, "a")
    assert second > first
    access.check(second, 0)
    with pytest.raises(StaleProducerAccess):
        access.check(first, 0)


def test_who_is_silent_may_be_followed_and_who_fences_waits_for_nobody() -> None:
    access = Access(AccessState())
    first = acquire(access, "a")
    access.check(first, SESSION_MS - 1)
    with pytest.raises(ProducerBusy):
        acquire(access, "b", 2 * SESSION_MS - 2)
    access.check(first, 5 * SESSION_MS)  # late, but no other producer has followed
    second = acquire(access, "b", 6 * SESSION_MS)
    third = acquire(access, "c", 6 * SESSION_MS, fencing=True)
    assert first < second < third
    with pytest.raises(StaleProducerAccess):
        access.check(second, 6 * SESSION_MS)


def test_released_once_and_by_its_holder() -> None:
    access = Access(AccessState())
    epoch = acquire(access, "a")
    with pytest.raises(StaleProducerAccess):
        access.release(epoch - 1)
    assert access.release(epoch) == AccessState(epoch + 1, "")
    assert access.release(epoch) is None, "the answer was lost, and the call made again"
    access.check(None, 0)
    assert acquire(access, "b") == epoch + 2
    with pytest.raises(StaleProducerAccess):
        access.release(epoch)


def test_with_a_new_owner_its_holder_has_its_time_anew() -> None:
    epoch = 7
    access = Access(AccessState(epoch, "a", SESSION_MS))
    with pytest.raises(ProducerBusy):
        acquire(access, "b", 50_000)
    access.check(epoch, 50_500)
    with pytest.raises(ProducerBusy):
        acquire(access, "b", 51_499)
    assert acquire(access, "b", 51_500) == epoch + 1


STEPS = st.lists(
    st.tuples(st.sampled_from(["acquire", "fence", "release", "publish", "plain", "time", "owner"]),
              st.sampled_from("abc")),
    max_size=50,
)  # fmt: skip


@given(STEPS)
def test_one_epoch_is_one_producers_and_never_comes_back(steps: list[tuple[str, str]]) -> None:
    access, now_ms, log = Access(AccessState()), 0, [encode([["v", 1]])]
    mine: dict[str, int] = {}
    given_to: dict[int, str] = {}
    stored: list[int] = []
    for what, who in steps:
        now_ms += 1
        try:
            if what in ("acquire", "fence"):
                epoch = acquire(access, who, now_ms, fencing=what == "fence")
                log.append(encode([access_op(access.state)]))
                assert epoch not in given_to
                mine[who] = epoch
                given_to[epoch] = who
            elif what == "release":
                access.release(mine.get(who, 0))
                log.append(encode([access_op(access.state)]))
            elif what == "publish":
                access.check(mine.get(who, 0), now_ms)
                stored.append(mine[who])
            elif what == "plain":
                access.check(None, now_ms)
                assert not access.state.producer
            elif what == "time":
                now_ms += SESSION_MS
            else:
                state = State()
                for entry in log:
                    state.apply(entry)
                assert state.access == access.state
                access = Access(state.access)
                log = [*snapshot([], [], 0, access=state.access), *log[-1:]]
        except (ProducerBusy, StaleProducerAccess, ExclusiveProducer):
            pass
    assert stored == sorted(stored), "nothing of an earlier epoch lies behind a later one"


class Topic:
    """The audit partition at another broker, with the rules of idempotent producers."""

    def __init__(self) -> None:
        self.producers = ProducerTable(10)
        self.stored: list[int] = []
        self.answers_lost = 0
        self.hangs: asyncio.Event | None = None
        """Store, and never answer; set when it has stored."""
        self.refuses = False

    async def store(self, _: Any, batch: bytes) -> None:
        await asyncio.sleep(0)
        if self.refuses:
            raise OSError("no owner")
        head = read_header(batch)
        of = head.producer_id, head.producer_epoch, head.base_sequence, head.record_count
        if self.producers.check(*of) is None:
            self.producers.accept(*of, len(self.stored))
            self.stored += [
                msgspec.json.decode(record.value or b"")["number"] for record in read_records(batch)
            ]
        if self.hangs is not None:
            self.hangs.set()
            await asyncio.Event().wait()
        if self.answers_lost:
            self.answers_lost -= 1
            raise TimeoutError("the answer was lost")


class Ownership:
    async def owner_of(self, _: Any) -> Any:
        await asyncio.sleep(0)
        return type("Owner", (), {"local": False})


class Bench:
    def __init__(self, most: int = 10_000) -> None:
        self.topic = Topic()
        self.lost = self.written = 0
        broker: Any = type(
            "Broker",
            (),
            {"config": BrokerConfig(audit_queue_max=most), "ownership": Ownership()},
        )
        self.writer = AuditWriter(
            broker,
            self.topic.store,
            rng=random.Random(1),
            count_lost=self._count_lost,
            count_written=self._count_written,
        )
        self.added = 0

    def _count_lost(self) -> None:
        self.lost += 1

    def _count_written(self, count: int) -> None:
        self.written += count

    def add(self, count: int) -> None:
        for _ in range(count):
            self.writer.add({"number": self.added}, 0)
            self.added += 1


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.broker.audit.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("octavo.broker.audit.LONGEST_PAUSE_S", 0.001)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("more", [0, 1, 3, BATCH_EVENTS_MAX])
async def test_a_batch_that_was_broken_off_goes_on_as_it_was(more: int) -> None:
    bench = Bench()
    bench.add(2)
    bench.topic.hangs = asyncio.Event()
    writing = asyncio.create_task(bench.writer.write_all())
    await bench.topic.hangs.wait()
    bench.add(more)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    bench.topic.hangs = None
    await bench.writer.write_all()
    assert bench.topic.stored == [*range(2 + more)]
    assert bench.writer.describe() == {"waiting": 0}
    assert bench.written == 2 + more


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("steps", range(12))
async def test_broken_off_at_each_step(steps: int) -> None:
    bench = Bench()
    for _ in range(3):
        bench.add(2)
        bench.topic.answers_lost = 1
        writing = asyncio.create_task(bench.writer.write_all())
        for _ in range(steps):
            await asyncio.sleep(0)
        bench.add(1)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    bench.topic.answers_lost = 0
    await bench.writer.write_all()
    assert bench.topic.stored == [*range(9)]
    assert (bench.writer.waiting, bench.written, bench.lost) == (0, 9, 0)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_the_line_holds_as_many_as_it_may_and_tells_what_was_lost(more: int) -> None:
    bench = Bench(most=5)
    bench.topic.refuses = True
    bench.add(5 + more)
    assert (bench.writer.waiting, bench.lost) == (min(5, 5 + more), max(0, more))
    writing = asyncio.create_task(bench.writer.write_all())
    await asyncio.sleep(0.01)
    bench.topic.refuses = False
    await writing
    bench.add(1)
    assert ("lost" in msgspec.json.decode(bench.writer._waiting[-1].value or b"")) is (more > 0)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_a_batch_has_as_many_events_as_it_may(more: int) -> None:
    bench = Bench()
    bench.add(BATCH_EVENTS_MAX + more)
    await bench.writer.write_all()
    assert bench.topic.stored == [*range(BATCH_EVENTS_MAX + more)]
    assert bench.writer._sequence == BATCH_EVENTS_MAX + more


amounts = st.sampled_from([None, OFF, 1, 2**63 - 1])
policies = st.builds(
    Policies,
    **{name: st.sampled_from([None, *WORDS[name]]) if name in WORDS else amounts for name in NAMES},
)


@given(topic=policies, namespace=policies)
def test_the_topics_own_word_goes_first(topic: Policies, namespace: Policies) -> None:
    check_policies(topic)
    holds = effective(topic, namespace)
    plain = resolved(topic, namespace)
    for name in NAMES:
        own, common = getattr(topic, name), getattr(namespace, name)
        said = own if own is not None else common
        default = WORDS[name][0] if name in WORDS else None
        assert holds[name].value == (default if said is None else None if said == OFF else said)
        by = "topic" if own is not None else "namespace" if common is not None else "default"
        assert holds[name].source == by
        assert getattr(plain, name) == holds[name].value
    assert resolved(plain, Policies()) == plain, "what holds once holds for good"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ttl_ms": 0}, "ttl is 0 s; it must be between 0.001"),
        ({"ttl_ms": -2}, "or off"),
        ({"retention_ms": -2}, "between 0"),
        ({"backlog_bytes": 2**63}, "backlog_quota.size"),
        ({"backlog_policy": "drop"}, "hold, reject, evict"),
        ({"message_time": "now"}, "create, append"),
        ({"durability": "x" * 100}, "sync, deferred"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        check_policies(Policies(**wrong))
    with pytest.raises(InvalidSettings, match=says):
        TopicSettings(policies=Policies(**wrong))


def test_a_topics_settings_under_its_namespace() -> None:
    namespace = Policies(retention_ms=5, retention_bytes=7, ttl_ms=9)
    silent = TopicSettings(partitions=3).under(namespace)
    assert (silent.retention_ms, silent.retention_bytes, silent.policies.ttl_ms) == (5, 7, 9)
    assert silent.partitions == 3
    speaks = TopicSettings(retention_ms=OFF, retention_bytes=8, policies=Policies(ttl_ms=OFF))
    held = speaks.under(namespace)
    assert (held.retention_ms, held.retention_bytes, held.policies.ttl_ms) == (None, 8, None)
    assert replace(silent, partitions=3).under(Policies()) == silent, "asked twice, the same"
