"""The state ledger's entries: replay gives the state, whatever way it was written."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import (
    SNAPSHOT_ENTRY_BYTES,
    BadStateLedger,
    State,
    ack_op,
    cursor_op,
    delete_op,
    encode,
    producers_op,
    snapshot,
)
from octavo.broker.state.producers import ProducerState, Remembered

acks = st.lists(st.tuples(st.integers(0, 9_000), st.integers(1, 300)), max_size=12)


def replayed(*entries: bytes) -> State:
    state = State()
    for entry in entries:
        state.apply(entry)
    return state


@given(st.dictionaries(st.sampled_from("abc"), acks), st.integers(0, 20))
def test_deltas_and_snapshots_give_the_same_state(
    acked: dict[str, list[tuple[int, int]]], floor: int
) -> None:
    cursors = {name: Cursor(floor) for name in acked}
    entries = [encode([cursor_op(name, 5, floor) for name in acked])]
    for name, ranges in acked.items():
        for start, length in ranges:
            cursors[name].ack(start, start + length)
            entries.append(encode([ack_op(name, [(start, start + length)])]))
    by_deltas = replayed(*entries, entries[-1])
    by_snapshot = replayed(*snapshot([(n, 5, c) for n, c in cursors.items()], [], 0))
    for state in (by_deltas, by_snapshot):
        assert state.cursors.keys() == cursors.keys()
        for name, held in state.cursors.items():
            assert held.created_ms == 5
            assert held.cursor.committed_offset == cursors[name].committed_offset
            assert list(held.cursor.ranges()) == list(cursors[name].ranges())


def test_producers_are_replaced_one_by_one_and_keep_their_order_of_activity() -> None:
    one = ProducerState(1, 0, (Remembered(0, 9, 100),))
    two = ProducerState(2, 3, (Remembered(0, 0, 110), Remembered(1, 4, 111)))
    newer = ProducerState(1, 1, (Remembered(0, 2, 200),))
    state = replayed(*snapshot([], [one, two], 116), encode([producers_op(203, [newer])]))
    assert list(state.producers.values()) == [two, newer]
    assert state.producers_upto == 203


def test_a_seek_forgets_and_a_deletion_removes() -> None:
    made = encode([cursor_op("s", 1, 0), ack_op("s", [(5, 9)])])
    assert list(replayed(made).cursors["s"].cursor.ranges()) == [(5, 9)]
    sought = replayed(made, encode([cursor_op("s", 1, 3)]))
    assert list(sought.cursors["s"].cursor.ranges()) == []
    assert replayed(made, encode([delete_op("s")])).cursors == {}


def test_a_million_holes_are_several_entries_of_bounded_size() -> None:
    cursor = Cursor()
    for offset in range(1, 2_000_000, 2):
        cursor.ack(offset, offset + 1)
    entries = list(snapshot([("s", 1, cursor)], [], 0))
    assert max(map(len, entries)) < SNAPSHOT_ENTRY_BYTES + 2_000
    assert len(entries) >= 2 or len(entries[0]) < SNAPSHOT_ENTRY_BYTES + 2_000
    held = replayed(*entries).cursors["s"].cursor
    assert held.acked_beyond == held.hole_count() == 1_000_000


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb([7]),
        msgpack.packb([["x"]]),
        msgpack.packb([["c", "s", "late", 0]]),
        msgpack.packb([["a", "unknown", [0]]]),
        msgpack.packb([["c", "s", 1, 0], ["a", "s", [0]]]),
        msgpack.packb([["p", 1, [[1, 2, [3]]]]]),
        msgpack.packb([["v", 2]]),
    ],
)
def test_what_cannot_be_read_is_refused_with_one_error(entry: bytes) -> None:
    with pytest.raises(BadStateLedger):
        State().apply(entry)


@given(st.binary(max_size=200))
def test_noise_gives_no_other_error(noise: bytes) -> None:
    try:
        State().apply(noise)
    except BadStateLedger:
        pass
