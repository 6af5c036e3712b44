"""A bookie refuses a store that is older than its high-water mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bookie.disk.files import RealDisk
from octavo.bookie.ledgers.high_water import (
    NAME,
    HighWaterDamaged,
    decode_high_water,
    encode_high_water,
    is_older,
    raised,
    read_high_water,
    write_high_water,
)
from octavo.metadata.high_water import HighWater


def test_what_is_older() -> None:
    assert not is_older(None, None), "a first start, or one of a release that kept no mark"
    assert not is_older(HighWater(7, 0), None), "the folders are new, or were lost"
    assert not is_older(HighWater(7, 0), HighWater(7, 0))
    assert not is_older(HighWater(8, 0), HighWater(7, 0)), "a crash came between the two"
    assert is_older(HighWater(6, 0), HighWater(7, 0))
    assert is_older(None, HighWater(7, 0))


def test_a_mark_rises_above_all_that_is_known() -> None:
    assert raised(None, None, 0) == HighWater(1, 0)
    assert raised(HighWater(4, 2), None, 1) == HighWater(5, 2)
    assert raised(HighWater(4, 2), HighWater(9, 1), 3) == HighWater(10, 3)
    assert raised(None, HighWater(9, 5), 0) == HighWater(10, 5)


def test_the_highest_file_that_can_be_read_counts(tmp_path: Path) -> None:
    disk = RealDisk()
    folders = [str(tmp_path / name) for name in "abc"]
    for folder in folders:
        disk.make_directory(folder)
    assert read_high_water(disk, folders) is None
    write_high_water(disk, folders, HighWater(3, 1))
    write_high_water(disk, folders[:1], HighWater(4, 0))
    assert read_high_water(disk, folders) == HighWater(4, 1)
    (tmp_path / "a" / NAME).write_bytes(b"nonsense")
    assert read_high_water(disk, folders) == HighWater(3, 1)


def test_every_damaged_byte_and_every_cut_is_noticed() -> None:
    data = encode_high_water(HighWater(41, 2))
    assert decode_high_water(data) == HighWater(41, 2)
    for length in range(len(data)):
        with pytest.raises(HighWaterDamaged):
            decode_high_water(data[:length])
    for place in range(len(data)):
        with pytest.raises(HighWaterDamaged):
            decode_high_water(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(HighWaterDamaged):
        decode_high_water(data + b"\0")


@pytest.mark.parametrize("mark", [HighWater(-1, 0), HighWater(0, -1)])
def test_numbers_that_no_mark_has(mark: HighWater) -> None:
    with pytest.raises(HighWaterDamaged):
        decode_high_water(encode_high_water(mark))
