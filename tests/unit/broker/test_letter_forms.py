"""Copies of messages that are as long as an entry: their added headers made them longer."""

from __future__ import annotations

import random

import pytest

from octavo.broker.subscriptions.dead_letters import (
    ORIGIN,
    RETRY_FOR,
    as_large,
    beside,
    dead_letter_of,
    fitting_batch,
    retry_of,
)
from octavo.broker.types import Delivery, MessageId, TopicName
from octavo.protocol.batch import ATTRIBUTE_COMPRESSION, check_batch
from octavo.protocol.due import DELIVER_AT
from octavo.protocol.large import large_body_of
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.names import NAME_CHARS_MAX
from octavo.protocol.records import Record, build_batch, read_records

NAME = TopicName("public", "t").partition(3)
PRODUCER = -77
NOISE = random.Random(5).randbytes(ENTRY_PAYLOAD_BYTES_MAX)


def filling(spare: int) -> Record:
    """Make a message whose batch leaves this many bytes of an entry."""
    around = len(build_batch([Record(b"k", NOISE[: 1 << 22], (), 0)])) - (1 << 22)
    size = ENTRY_PAYLOAD_BYTES_MAX - spare - around
    return Record(b"k", NOISE[:size], (), 0)


def letter(record: Record, *, retry: bool = False) -> Record:
    delivery = Delivery("a", 17, MessageId(1, 2, 3), record, 5)
    if retry:
        return retry_of(NAME, "s", delivery, 9_000_000)
    return dead_letter_of(NAME, "s", delivery)


def only(batch: bytes) -> Record:
    check_batch(batch)
    (record,) = read_records(batch)
    return record


@pytest.mark.parametrize("retry", [False, True])
def test_a_short_one_stays_as_it_is(*, retry: bool) -> None:
    copy = letter(Record(b"k", b"v", [("own", b"1")], 0), retry=retry)
    batch = fitting_batch(copy, PRODUCER)
    assert batch is not None
    assert not check_batch(batch).attributes & ATTRIBUTE_COMPRESSION
    assert list(only(batch).headers) == list(copy.headers)


def test_what_is_too_long_goes_with_fewer_headers() -> None:
    """Each number of spare bytes, and each dropped header, is a separate step."""
    kept = set()
    for spare in (200, 150, 100, 60):
        record = filling(spare)
        batch = fitting_batch(letter(record), PRODUCER)
        assert batch is not None, spare
        assert ENTRY_PAYLOAD_BYTES_MAX - 200 < len(batch) <= ENTRY_PAYLOAD_BYTES_MAX
        found = only(batch)
        assert found.value == record.value
        kept.add(len(list(found.headers)))
        names = [name for name, _ in found.headers]
        assert ORIGIN + "Offset" in names, "it says where it comes from as long as it can"
    assert len(kept) > 1


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_copy_that_just_fits_keeps_every_header(more: int) -> None:
    """A byte beyond an entry costs a header, the last byte of the entry does not."""
    around = len(build_batch(letter(Record(b"k", NOISE[: 1 << 22], (), 0)) for _ in range(1)))
    size = ENTRY_PAYLOAD_BYTES_MAX - (around - (1 << 22)) + more
    copy = letter(Record(b"k", NOISE[:size], (), 0))
    batch = fitting_batch(copy, PRODUCER)
    assert batch is not None
    if more <= 0:
        assert len(batch) == ENTRY_PAYLOAD_BYTES_MAX + more
    kept = len(list(only(batch).headers))
    assert (kept == len(list(copy.headers))) is (more <= 0)
    assert only(batch).value == copy.value


def test_a_retry_keeps_the_name_of_its_subscription_and_its_time() -> None:
    batch = fitting_batch(letter(filling(62), retry=True), PRODUCER)
    assert batch is not None
    assert {name for name, _ in only(batch).headers} == {RETRY_FOR, DELIVER_AT}


@pytest.mark.parametrize("retry", [False, True])
def test_the_longest_one_goes_in_pieces(*, retry: bool) -> None:
    """It was refused for ever, and its original was never acked."""
    copy = letter(filling(0), retry=retry)
    if not retry:
        assert fitting_batch(copy, PRODUCER) is not None, "without a header it is as before"
        return
    assert fitting_batch(copy, PRODUCER) is None
    found = as_large(copy, "letter:1")
    assert found is not None
    large, body = found
    assert (large.value, body) == (b"", copy.value)
    assert list(large.headers)[:-1] == list(copy.headers)
    said = large_body_of(large.headers)
    assert said is not None
    assert (said.size, said.upload) == (len(body), "letter:1")


def test_one_without_a_value_has_no_pieces() -> None:
    key = Record(NOISE[: ENTRY_PAYLOAD_BYTES_MAX - 200], None, (), 0)
    assert as_large(letter(key, retry=True), "letter:1") is None


def test_the_topic_beside_has_a_name_that_may_be() -> None:
    assert beside("failed", retries=False) == "failed-dlq"
    assert beside("again", retries=True) == "again-retry"
    longest = [beside(letter * NAME_CHARS_MAX, retries=False) for letter in "ab"]
    assert [len(name) for name in longest] == [NAME_CHARS_MAX] * 2
    assert longest[0] != beside("a" * (NAME_CHARS_MAX - 1) + "b", retries=False)
