"""Producer sequences against a model: (producer, epoch, sequence) → offset, in a dict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.errors import SequenceGap, StaleProducerEpoch
from octavo.broker.state.producers import (
    BATCHES_REMEMBERED,
    SEQUENCE_MODULUS,
    Duplicate,
    ProducerState,
    ProducerTable,
    Remembered,
    next_sequence,
)

LAST = SEQUENCE_MODULUS - 1

attempts = st.lists(
    st.tuples(
        st.integers(1, 3),  # producer
        st.integers(0, 2),  # epoch
        st.integers(-12, 3),  # distance from the next sequence
        st.integers(1, 4),  # messages
    ),
    max_size=60,
)


@given(attempts)
def test_against_a_dict(tries: list[tuple[int, int, int, int]]) -> None:
    against_a_dict(tries, None)


@given(attempts, st.integers(LAST - 40, LAST + 1))
def test_against_a_dict_where_sequences_wrap(
    tries: list[tuple[int, int, int, int]], at: int
) -> None:
    against_a_dict(tries, at)


def against_a_dict(tries: list[tuple[int, int, int, int]], at: int | None) -> None:
    """Check against the dict, which counts on where sequences wrap. `at`: the number of earlier
    messages."""
    table = ProducerTable(10)
    stored: dict[tuple[int, int, int], int] = {}
    epochs: dict[int, int] = {}
    following: dict[int, int] = {}
    end = 0
    for producer in (1, 2, 3):
        if at is None:
            break
        known = Remembered(at - 20, at - 1, end)
        table.restore(ProducerState(producer, 0, (known,)))
        stored.update({(producer, 0, at - 20 + i): end + i for i in range(20)})
        epochs[producer], following[producer] = 0, at
        end += 20
    for producer, epoch, distance, count in tries:
        fresh = epoch > epochs.get(producer, -1)
        expected = 0 if fresh else following[producer]
        first = max(0, expected + distance)
        wanted = [(producer, epoch, first + i) for i in range(count)]
        sent = first % SEQUENCE_MODULUS
        if epoch < epochs.get(producer, -1):
            with pytest.raises(StaleProducerEpoch):
                table.check(producer, epoch, sent, count)
        elif first == expected:
            assert table.check(producer, epoch, sent, count) is None
            table.accept(producer, epoch, sent, count, end)
            stored.update({key: end + i for i, key in enumerate(wanted)})
            epochs[producer], following[producer] = epoch, first + count
            end += count + 2  # other producers' messages lie between
        elif not fresh and all(key in stored for key in wanted):
            found = table.check(producer, epoch, sent, count)
            assert found is not None
            if found.first_offset >= 0:
                places = (stored[wanted[0]], stored[wanted[-1]])
                assert (found.first_offset, found.last_offset) == places
            assert found.stored_from >= stored[wanted[-1]]
        else:
            with pytest.raises(SequenceGap) as gap:
                table.check(producer, epoch, sent, count)
            assert gap.value.expected == expected % SEQUENCE_MODULUS


def filled(batches: int, size: int = 10) -> ProducerTable:
    table = ProducerTable(10)
    for i in range(batches):
        assert table.check(7, 0, i * size, size) is None
        table.accept(7, 0, i * size, size, 1000 * i)
    return table


def test_the_last_five_batches_have_their_offsets_and_older_ones_are_only_known_stored() -> None:
    table = filled(BATCHES_REMEMBERED + 2)
    assert table.check(7, 0, 20, 10) == Duplicate(2000, 2009, 2009)
    assert table.check(7, 0, 10, 10) == Duplicate(-1, -1, 2000)


def test_a_repeat_with_other_boundaries_finds_its_messages() -> None:
    table = filled(4)
    assert table.check(7, 0, 15, 3) == Duplicate(1005, 1007, 1007)
    assert table.check(7, 0, 15, 10) == Duplicate(1005, 2004, 2004)


def test_a_batch_that_is_half_old_and_half_new_is_a_gap() -> None:
    with pytest.raises(SequenceGap) as gap:
        filled(3).check(7, 0, 25, 10)
    assert gap.value.expected == 30


def test_sequences_wrap_as_int32() -> None:
    table = ProducerTable(10)
    table.restore(ProducerState(7, 0, (Remembered(LAST - 9, LAST - 5, 50),)))
    assert table.check(7, 0, LAST - 4, 10) is None
    table.accept(7, 0, LAST - 4, 10, 100)
    assert next_sequence(LAST - 4, 10) == 5
    assert table.check(7, 0, 5, 1) is None
    assert table.check(7, 0, LAST - 4, 10) == Duplicate(100, 109, 109)
    assert table.check(7, 0, LAST, 2) == Duplicate(104, 105, 105)
    with pytest.raises(SequenceGap):
        table.check(7, 0, 6, 1)


def test_an_unknown_producer_begins_at_zero() -> None:
    with pytest.raises(SequenceGap, match="must begin at 0") as gap:
        ProducerTable(10).check(7, 0, 3, 1)
    assert gap.value.expected == 0


def test_a_new_epoch_begins_at_zero_and_shuts_the_old_one_out() -> None:
    table = filled(2)
    with pytest.raises(SequenceGap):
        table.check(7, 1, 20, 1)
    assert table.check(7, 1, 0, 1) is None
    table.accept(7, 1, 0, 1, 9000)
    with pytest.raises(StaleProducerEpoch, match="has epoch 1; epoch 0"):
        table.check(7, 0, 20, 1)


def test_the_silent_one_is_forgotten_first() -> None:
    table = ProducerTable(2)
    for offset, producer in enumerate((1, 2, 1, 3)):
        first = 1 if offset == 2 else 0
        assert table.check(producer, 0, first, 1) is None
        table.accept(producer, 0, first, 1, offset)
    assert len(table) == 2
    with pytest.raises(SequenceGap, match="not known here"):
        table.check(2, 0, 1, 1)
    assert table.check(1, 0, 2, 1) is None


def test_a_snapshot_carries_all_and_a_scan_over_it_changes_nothing() -> None:
    table = filled(7)
    again = ProducerTable(10)
    for state in table.snapshot():
        again.restore(state)
    again.accept(7, 0, 50, 10, 5000)
    again.accept(7, 0, 60, 10, 6000)
    assert list(again.snapshot()) == list(table.snapshot())


def test_only_what_changed_is_handed_out_again() -> None:
    table = filled(2)
    assert [state.producer_id for state in table.take_changed()] == [7]
    assert table.take_changed() == []
    table.accept(8, 0, 0, 1, 5)
    assert [state.producer_id for state in table.take_changed()] == [8]
