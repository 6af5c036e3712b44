"""Equal frames of a journal block are decoded in bulk, with the same result as singly."""

from __future__ import annotations

import random

import pytest

from octavo.bookie.adds import AddBatch
from octavo.bookie.journal import reader
from octavo.bookie.journal.format import JournalDamaged
from octavo.bookie.journal.reader import records_of
from octavo.protocol.entry import HEADER
from octavo.protocol.frames import ADD_IDS, Flag, add_prefix

KEYS = (b"k" * 20, b"l" * 20)


def frame(ledger_id: int, entry_id: int, size: int, key: bytes, flags: int) -> bytes:
    entry = HEADER.pack(ledger_id, entry_id, entry_id - 1, 0) + b"x" * size
    return add_prefix(key, len(entry), flags) + entry


def draw(rng: random.Random) -> list[bytes]:
    """Draw frames that mostly continue the one before, and sometimes differ in one thing."""
    ledger, entry, size, key, flags = 1, 0, 30, KEYS[0], 0
    frames = []
    for _ in range(rng.randrange(1, 60)):
        frames.append(frame(ledger, entry, size, key, flags))
        entry += 1
        match rng.randrange(25):
            case 0:
                ledger = rng.randrange(1, 3)
            case 1:
                entry = max(0, entry + rng.choice((-3, -2, -1, 1, 7)))
            case 2:
                size = rng.choice((0, 1, 30, 31))
            case 3:
                key = rng.choice(KEYS)
            case 4:
                flags = rng.choice((0, int(Flag.RECOVERY_ADD)))
    return frames


def told(runs: list[AddBatch]) -> list[tuple[int, int, bytes, bool, bytes]]:
    found = []
    for run in runs:
        offsets = [*run.offsets, len(run.frames)]
        assert len(offsets) == run.count + 1
        for n in range(run.count):
            part = bytes(run.frames[offsets[n] : offsets[n + 1]])
            found.append((run.ledger_id, run.first_entry + n, run.key, run.recovery, part))
    return found


@pytest.mark.parametrize("seed", range(300))
def test_every_add_is_told_as_it_stands(seed: int) -> None:
    frames = draw(random.Random(seed))
    runs = [run for run in records_of(b"".join(frames)) if isinstance(run, AddBatch)]
    wanted = []
    for one in frames:
        _, head, key, ledger_id, entry_id = ADD_IDS.unpack_from(one)
        wanted.append((ledger_id, entry_id, key, bool(head & int(Flag.RECOVERY_ADD)), one))
    assert told(runs) == wanted


def test_alike_frames_make_one_run() -> None:
    frames = [frame(7, n, 100, KEYS[0], 0) for n in range(500)]
    frames += [
        frame(7, 500 + n, 99, KEYS[0], 0) for n in range(3)
    ]  # shorter entries continue the run
    (run,) = records_of(b"".join(frames))
    assert isinstance(run, AddBatch)
    assert (run.first_entry, run.count) == (0, 503)
    assert reader._alike(b"".join(frames), 0, len(frames[0])) == 500


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_frame_that_does_not_end_in_its_block_is_damage(count: int) -> None:
    body = b"".join(frame(7, n, 100, KEYS[0], 0) for n in range(count))
    with pytest.raises(JournalDamaged):
        list(records_of(body[:-1]))
