"""Packed bodies, in any pieces: the whole body, or an error."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.http.problems import Problem
from octavo.broker.http.request_body import GROWTH_FREE_BYTES, GROWTH_MAX, PIECE_BYTES, Decompressor


def unpacked(encoding: str, pieces: list[bytes]) -> bytes:
    inflater = Decompressor(encoding)
    found = [piece for data in pieces for piece in inflater.feed(data)]
    assert all(0 < len(piece) <= PIECE_BYTES for piece in found)
    inflater.finish()
    return b"".join(found)


def bare(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


FORMS = {
    "gzip": ("gzip", gzip.compress),
    "members": ("gzip", lambda some: gzip.compress(some[:7]) + gzip.compress(some[7:])),
    "zlib": ("deflate", zlib.compress),
    "bare": ("deflate", bare),
}


def cut(content: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(place, len(content)) for place in cuts} | {0, len(content)})
    return [content[start:end] for start, end in pairwise(places)]


@given(st.sampled_from(sorted(FORMS)), st.binary(), st.lists(st.integers(0, 300)))
def test_comes_back_whole_in_any_pieces(form: str, content: bytes, cuts: list[int]) -> None:
    encoding, pack = FORMS[form]
    assert unpacked(encoding, cut(pack(content), cuts)) == content


@given(st.sampled_from(["gzip", "zlib", "bare"]), st.binary(min_size=1), st.data())
def test_never_a_part_of_it(form: str, content: bytes, data: st.DataObject) -> None:
    encoding, pack = FORMS[form]
    packed = pack(content)
    length = data.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(Problem) as refused:
        unpacked(encoding, [packed[:length]])
    assert refused.value.code == "broken-content-encoding"


@given(st.sampled_from(["gzip", "deflate"]), st.lists(st.binary(max_size=40)))
def test_any_bytes_give_a_problem_at_worst(encoding: str, pieces: list[bytes]) -> None:
    with suppress(Problem):
        unpacked(encoding, pieces)


def test_bytes_after_the_end_are_no_part_of_it() -> None:
    with pytest.raises(Problem, match="follow its end"):
        unpacked("deflate", [zlib.compress(b"x") + b"more"])
    with pytest.raises(Problem):
        unpacked("gzip", [gzip.compress(b"x") + b"more"])


def test_a_bomb_is_refused_before_it_has_grown() -> None:
    packed = gzip.compress(bytes(50_000_000))
    pieces = Decompressor("gzip").feed(packed)
    given = 0

    def unpack() -> None:
        nonlocal given
        for piece in pieces:
            given += len(piece)

    with pytest.raises(Problem) as refused:
        unpack()
    assert refused.value.status == 413
    assert given <= max(GROWTH_FREE_BYTES, GROWTH_MAX * len(packed)) + PIECE_BYTES
