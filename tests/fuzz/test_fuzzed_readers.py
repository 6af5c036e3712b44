"""Mutated bytes: a reader raises its declared error or nothing, ends, and takes little memory."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import WriteOptions

from octavo.bookie.entrylog.format import Location
from octavo.bookie.index.index import COVERED_KEY, KEY, IndexedExtent, RocksIndex
from octavo.protocol.codes import BookieIOError
from tests.fuzz import identity_readers, readers
from tests.fuzz.readers import Reader

READERS = {**readers.READERS, **identity_readers.READERS}
SHORT_EXAMPLES = 150
EXAMPLES = 2000
MEASURE_EVERY = 10
"""Memory is measured in one of this many examples, because that takes time."""
_MEMORY_BYTES = 64 * 1024
"""Besides four times the input: error messages, tracebacks, late imports."""


KINDS = ("flip", "set", "cut", "insert", "repeat", "swap", "number")
MUTATIONS = st.binary(max_size=20)
"""Each four bytes of it: kind, place (two), value. One draw is cheaper than many."""


def mutated(data: bytes, mutations: bytes) -> bytes:
    for which, where, value in struct.iter_unpack(">BHB", mutations[: len(mutations) // 4 * 4]):
        kind = KINDS[which % len(KINDS)]
        at = where % (len(data) + 1)
        byte = bytes([value])
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << value % 8]) + data[at + 1 :]
        elif kind == "set":
            data = data[:at] + byte + data[at + 1 :]
        elif kind == "cut":
            data = data[:at] + data[at + value % 64 :]
        elif kind == "insert":
            data = data[:at] + byte * (value % 40) + data[at:]
        elif kind == "repeat":
            data = data[:at] + data[max(0, at - value % 64) :]
        elif kind == "swap":
            data = data[at:] + data[:at]
        elif kind == "number":
            data = data[:at] + (2 ** (value % 33) - 1).to_bytes(8)[4:] + data[at + 4 :]
    return data


def try_it(reader: Reader, data: bytes, *, measured: bool) -> None:
    if measured:
        tracemalloc.start()
    try:
        reader.read(data)
    except reader.errors:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    allowed = 4 * len(data) + _MEMORY_BYTES + reader.bytes_max
    assert peak <= allowed, f"{peak} bytes for {len(data)}"


def _fuzz(reader: Reader, examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(list(reader.valid)), MUTATIONS, st.integers(0, 2 * MEASURE_EVERY - 1))
    def fuzz(data: bytes, mutations: bytes, how: int) -> None:
        data = mutated(data, mutations)
        data = reader.seal(data) if how % 2 and reader.seal is not None else data
        try_it(reader, data, measured=how < 2)

    fuzz()


@pytest.mark.filterwarnings("ignore:invalid escape")
@pytest.mark.parametrize(
    "examples", [SHORT_EXAMPLES, pytest.param(EXAMPLES, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_of_mutated_bytes(name: str, examples: int) -> None:
    _fuzz(READERS[name], examples)


@pytest.mark.parametrize("name", READERS)
def test_valid_bytes_are_read(name: str) -> None:
    reader = READERS[name]
    for data in reader.valid:
        reader.read(data)
        if reader.seal is not None:
            assert reader.seal(data) == data
            reader.read(reader.seal(data))


def test_mutated_values_in_the_index(tmp_path: Path) -> None:
    index = RocksIndex(str(tmp_path))
    index.put([IndexedExtent(n, 0, 9, Location(1, 24, 100)) for n in (1, 2, 3)], (1, 124))
    options = WriteOptions()
    valid: dict[bytes, Any] = {
        KEY.pack(2, 0): index._db[KEY.pack(2, 0)],
        COVERED_KEY: index._db[COVERED_KEY],
    }

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(sorted(valid)), MUTATIONS)
    def fuzz(key: bytes, mutations: bytes) -> None:
        for other, value in valid.items():
            index._db.put(other, value, options)
        index._db.put(key, mutated(valid[key], mutations), options)
        for read in (
            lambda: index.find(2, 5),
            lambda: index.runs(2),
            lambda: index.runs(1),
            lambda: index.covered,
        ):
            try:
                read()
            except BookieIOError:
                continue

    fuzz()
    assert index.find(1, 5) is not None
    index.close()


def test_what_a_reader_must_not_do_is_found() -> None:
    def explodes(data: bytes) -> None:
        if len(data) < 4:
            raise IndexError

    def swells(data: bytes) -> None:
        bytes(int.from_bytes(data[:4]) % 2**22)

    for read in (explodes, swells):
        reader = Reader([b"12345678"], read, (ValueError,))
        with pytest.raises((IndexError, AssertionError)):
            _fuzz(reader, EXAMPLES)
