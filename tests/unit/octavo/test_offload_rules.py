"""Which ledgers an offload copies, drops and cleans up."""

from __future__ import annotations

from dataclasses import replace

from octavo.metadata.offloads import COPYING, DROPPED, OFFLOADED
from octavo.metadata.store import RECORD_BYTES_MAX
from octavo.metadata.topic_records import encode_record
from octavo.metadata.topics import OffloadIntent, OffloadRecord, PartitionLedger, PartitionRecord
from octavo.pipeline.offload_rules import (
    OFFLOADS_MAX,
    OffloadPolicy,
    is_forgotten,
    orphans,
    pause_s,
    planned,
    waves,
)

NAME = ("public", "t", 0)
HOUR = 3_600_000
URL = f"s3://archive/octavo/public/flights/0/ledger-4294967296-{'a' * 32}-12345678.parquet"
PLACE = OffloadRecord("a" * 32, OFFLOADED, URL, 2**41, 10**6, 2**30, 2**32 - 1, 2**32 - 1)


def link(
    ledger_id: int, closed_ms: int | None, size: int = 100, **offload: object
) -> PartitionLedger:
    place = OffloadRecord(**{"url": "x", **offload}) if offload else None  # type: ignore[arg-type]
    return PartitionLedger(ledger_id, 0, 5, size, 1, 2, closed_ms, offload=place)


def test_what_is_due_is_copied_and_what_is_old_is_dropped() -> None:
    record = PartitionRecord(
        (
            link(1, 0),
            link(2, 10 * HOUR),
            link(3, 0, size=9),
            link(4, 0, uuid="dead", state=COPYING),
            link(5, 0, uuid="new", state=OFFLOADED, since_ms=10 * HOUR),
            link(6, 0, uuid="old", state=OFFLOADED, since_ms=HOUR),
            link(7, 0, uuid="gone", state=DROPPED, since_ms=9 * HOUR),
            PartitionLedger(8, 0),
        )
    )
    policy = OffloadPolicy(age_ms=4 * HOUR, bytes_min=10, drop_lag_ms=2 * HOUR)
    plan = planned({NAME: record}, policy, 11 * HOUR)
    assert [(job.link.ledger_id, job.before) for job in plan.copies] == [(1, None), (4, "dead")]
    assert [(drop.ledger_id, drop.uuid) for drop in plan.drops] == [(6, "old"), (7, "gone")]
    assert (plan.kept, plan.offloaded) == (2, 3)
    without_lag = planned({NAME: record}, OffloadPolicy(), 11 * HOUR)
    assert [drop.ledger_id for drop in without_lag.drops] == [7], "a drop that was begun goes on"


def test_a_copy_that_no_record_names_is_an_orphan_after_a_while() -> None:
    intents = {
        uuid: OffloadIntent("public", "t", 0, ledger, "folder", "stem", created)
        for uuid, ledger, created in (
            ("copying", 1, 0),
            ("whole", 2, 0),
            ("trimmed", 3, 0),
            ("young", 4, 10 * HOUR),
        )
    }
    record = PartitionRecord(
        (link(1, 0, uuid="copying", state=COPYING), link(2, 0, uuid="whole", state=DROPPED))
    )
    policy = OffloadPolicy(grace_ms=HOUR)
    assert orphans(intents, {NAME: record}, policy, 10 * HOUR) == ["trimmed"]
    gone = orphans(intents, {NAME: PartitionRecord()}, policy, 11 * HOUR)
    assert gone == ["copying", "trimmed", "whole", "young"], "the topic was deleted"


def test_an_intent_outlives_its_objects() -> None:
    """Its run may have been taken for dead, and write the object after the look for it."""
    intent = OffloadIntent("public", "t", 0, 1, "folder", "stem", 0)
    policy = OffloadPolicy(grace_ms=HOUR)
    assert orphans({"dead": intent}, {}, policy, HOUR) == ["dead"]
    assert not is_forgotten(intent, policy, HOUR)
    assert is_forgotten(intent, policy, 24 * HOUR)


def test_the_pace_and_the_waves() -> None:
    assert pause_s(1000, 0.0, None) == 0.0
    assert pause_s(1000, 0.5, 1000.0) == 0.5
    assert pause_s(1000, 2.0, 1000.0) == 0.0
    plan = planned({NAME: PartitionRecord(tuple(link(n, 0) for n in range(5)))}, OffloadPolicy(), 9)
    assert [len(wave) for wave in waves(plan.copies, 2)] == [2, 2, 1]


def test_a_partitions_record_is_not_filled_up() -> None:
    links = [link(n, 0, uuid=str(n), state=OFFLOADED) for n in range(OFFLOADS_MAX - 2)]
    links += [link(n, 0, uuid=str(n), state=COPYING) for n in range(9_000, 9_001)]
    links += [link(n, 0) for n in range(9_100, 9_103)]
    plan = planned({NAME: PartitionRecord(tuple(links))}, OffloadPolicy(), 1)
    assert [job.link.ledger_id for job in plan.copies] == [9_000, 9_100], "and the one begun before"
    assert (plan.full, plan.kept) == ((NAME,), 2)
    every = [replace(one, offload=PLACE) for one in [link(n, 0) for n in range(4_000)]]
    most = PartitionRecord((*every[:OFFLOADS_MAX], *(link(n, 0) for n in range(2_500))))
    assert len(encode_record(most)) < RECORD_BYTES_MAX
