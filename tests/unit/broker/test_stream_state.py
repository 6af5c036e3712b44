"""A durable stream's state: which appends are allowed, and what a take-over finds of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.broker.errors import (
    EpochBegun,
    StaleStreamEpoch,
    StreamClosed,
    StreamSequence,
    StreamSequenceGap,
)
from octavo.broker.state.format import BadStateLedger, State, encode, snapshot
from octavo.broker.state.stream import (
    MARKER,
    Append,
    StreamConfig,
    StreamState,
    append_of,
    marker_of,
)

END = 7


def opened(**more: Any) -> StreamState:
    return StreamState(StreamConfig("text/plain"), **more)


def by(sequence: int, epoch: int = 0, producer: str = "p", **more: Any) -> Append:
    return Append(producer, epoch, sequence)._replace(**more)


def test_a_producers_appends_follow_one_another() -> None:
    stream = opened()
    for number in range(3):
        assert stream.check(by(number), number) is None
        stream.accept(by(number), number + 1)
    assert stream.check(by(1), END) == 3, "as far as it has come"
    with pytest.raises(StreamSequenceGap) as gap:
        stream.check(by(4), END)
    assert (gap.value.expected, gap.value.received) == (3, 4)
    with pytest.raises(EpochBegun):
        stream.check(by(3, epoch=1), END)
    assert stream.check(by(0, epoch=5), END) is None
    stream.accept(by(0, epoch=5), 4)
    with pytest.raises(StaleStreamEpoch) as stale:
        stream.check(by(3, epoch=4), END)
    assert stale.value.epoch == 5
    assert stream.check(by(0, producer="q"), END) is None
    with pytest.raises(StreamSequenceGap):
        stream.check(by(1, producer="q"), END)


def test_a_closed_stream_takes_nothing_but_repeats() -> None:
    stream = opened()
    stream.accept(by(0, closes=True), 1)
    assert stream.closed_by == ("p", 0, 0)
    assert stream.check(by(0, closes=True), END) == 1
    for late in (by(1), by(0, producer="q"), Append(), by(0, epoch=1), Append(closes=True)):
        with pytest.raises(StreamClosed) as closed:
            stream.check(late, END)
        assert closed.value.next_offset == END
    assert stream.check(Append(is_first=True), END) is None, "what it was made with"


def test_stream_seq_ascends_letter_by_letter() -> None:
    stream = opened()
    stream.accept(Append(stream_seq="2"), 1)
    for seq in ("2", "10", "", "1"):
        with pytest.raises(StreamSequence):
            stream.check(Append(stream_seq=seq), END)
    for seq in ("20", "3", "a"):
        assert stream.check(Append(stream_seq=seq), END) is None
    assert stream.check(Append(), END) is None, "who says none is not asked"
    repeat = by(0, stream_seq="3")
    stream.accept(repeat, 2)
    assert stream.check(repeat, END) == 2, "a repeat is one, whatever it says"


def test_the_one_silent_for_longest_is_forgotten() -> None:
    stream = opened(producers_max=2)
    for name in ("a", "b", "a", "c"):
        stream.accept(by(0, producer=name), 1)
    assert list(stream.producers) == ["a", "c"]


@pytest.mark.parametrize(
    "append",
    [by(3, epoch=2**53 - 1), Append(stream_seq="ä"), Append(closes=True), by(0, closes=True)],
)
def test_a_batch_says_what_its_append_changes(append: Append) -> None:
    marker = marker_of(append)
    assert marker is not None
    assert append_of([("other", b"x"), (MARKER, marker)]) == append


def test_a_plain_append_needs_no_word() -> None:
    assert marker_of(Append()) is None
    assert append_of([("other", b"x")]) is None
    for damaged in (b"", b"\x01", b"\x93\x01\x02\x03"):
        with pytest.raises(ValueError, match=MARKER):
            append_of([(MARKER, damaged)])


def replayed(*entries: bytes) -> State:
    return State.told_by([encode([["v", 1]]), *entries])


def test_what_was_queued_before_a_snapshot_takes_nothing_back() -> None:
    stream = opened()
    early = encode([stream.change(0)])
    for number in range(4):
        stream.accept(by(number), number + 1)
    stream.revision += 1
    stream.accept(Append(closes=True), 4)
    whole = list(snapshot([], [], 4, stream=stream))
    found = replayed(*whole, early).stream
    assert found is not None
    assert found.closed
    assert found.upto == 4
    assert found.producers == stream.producers


@pytest.mark.parametrize("damage", [[52], [52, 1, 0, 5, 0, 0, 0, None, None, 0, []]])
def test_a_damaged_operation_is_named(damage: list[object]) -> None:
    with pytest.raises(BadStateLedger):
        replayed(encode([damage]))


@pytest.mark.parametrize("seed", range(20))
def test_owners_that_die_know_all_that_was_stored(seed: int) -> None:
    """Operations now and then, batches with their markers between: a take-over replays the
    operations and reads the batches after them."""
    rng = random.Random(seed)
    stream = opened()
    log: list[tuple[int, bytes | None]] = []
    ops = [encode([stream.change(0)])]
    for _ in range(200):
        end = len(log)
        step = rng.random()
        if step < 0.7:
            name = rng.choice("abc")
            known = stream.producers.get(name)
            append = by(0 if known is None else known.sequence + 1, 0, name)
            if known is not None and rng.random() < 0.1:
                append = by(0, known.epoch + 1, name)
            elif known is not None:
                append = append._replace(epoch=known.epoch)
            if rng.random() < 0.3:
                append = append._replace(stream_seq=f"{end:06d}")
            assert stream.check(append, end) is None
            log.append((end + 1, marker_of(append)))
            stream.accept(append, end + 1)
        elif step < 0.8:
            log.append((end + 1, None))
        elif step < 0.9:
            ops.append(encode([stream.change(end)]))
        else:
            found = replayed(*ops).stream
            assert found is not None
            for ends, marker in log:
                if marker is not None and ends > found.upto:
                    append_found = append_of([(MARKER, marker)])
                    assert append_found is not None
                    found.replay(append_found, ends)
            assert dict(found.producers) == dict(stream.producers)
            assert found.stream_seq == stream.stream_seq
            stream = found
            ops = list(snapshot([], [], end, stream=stream))


def test_a_copy_goes_its_own_way() -> None:
    stream = opened()
    stream.accept(by(0), 1)
    other = stream.copy()
    other.accept(by(1), 2)
    assert stream.producers["p"].sequence == 0
    assert other.producers["p"].sequence == 1


def test_many_producers_are_told_in_parts() -> None:
    stream = opened()
    for number in range(2_500):
        stream.accept(by(0, producer=f"p{number}"), number + 1)
    found = replayed(*snapshot([], [], 2_500, stream=stream)).stream
    assert found is not None
    assert found.producers == stream.producers
    assert next(iter(stream.told(2_500)))[-1][0][0] == "p0"
    assert len(list(stream.told(2_500))) == 3
