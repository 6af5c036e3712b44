"""A large body is cut and put together again; nothing else is ever taken for it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol.large import (
    LARGE_HEADER,
    PIECE_HEADER,
    Assembler,
    BodyTooLong,
    BrokenBody,
    Cutter,
    LargeBody,
    Piece,
    large_body_of,
    piece_of,
    piece_record,
)
from octavo.protocol.records import Record, build_batch, read_records

PIECE = 7
"""Bytes, in place of a mebibyte."""
BODIES = st.binary(max_size=60)


def cut(body: bytes, upload: str = "u", rng: random.Random | None = None) -> list[Piece]:
    """Return its pieces, each through a batch, when it comes in parts of any length."""
    cutter, found = Cutter(upload, 100, PIECE), list[bytes]()
    at = 0
    while at < len(body):
        size = len(body) if rng is None else rng.randrange(1, 20)
        found += cutter.feed(body[at : at + size])
        at += size
    if rest := cutter.rest():
        found.append(rest)
    assert all(len(one) == PIECE for one in found[:-1])
    assert cutter.body() == LargeBody(len(body), len(found), f"{crc32c(body):08x}", upload)
    return [*through_batches(upload, found)]


def through_batches(upload: str, parts: list[bytes]) -> Iterator[Piece]:
    for index, data in enumerate(parts):
        (record,) = read_records(build_batch([piece_record(upload, index, data, 1)]))
        yield piece_of(record)


def described(body: bytes, upload: str = "u") -> LargeBody:
    return LargeBody(len(body), -(-len(body) // PIECE), f"{crc32c(body):08x}", upload)


def assembled(pieces: list[Piece], body: LargeBody) -> bytes | None:
    """Return all output, or None when it was refused before the end."""
    assembler, found = Assembler(body), b""
    for piece in pieces:
        try:
            found += assembler.take(piece)
        except BrokenBody:
            return None
    return found if assembler.is_whole else None


@given(BODIES, st.randoms(use_true_random=False))
def test_however_it_comes_in_it_comes_out_as_it_was(body: bytes, rng: random.Random) -> None:
    pieces = cut(body, rng=rng)
    if body:
        assert assembled(pieces, described(body)) == body
    assert large_body_of([("x", b"y"), described(body).header()]) == described(body)


@given(st.lists(BODIES, min_size=1, max_size=3), st.randoms(use_true_random=False), st.data())
def test_of_interleaved_uploads_nothing_but_a_whole_body_comes_out(
    bodies: list[bytes], rng: random.Random, data: st.DataObject
) -> None:
    """Lost, repeated, mixed and damaged pieces: the output is the body, or nothing."""
    uploads = {f"u{number}": body for number, body in enumerate(bodies)}
    pieces = [piece for upload, body in uploads.items() for piece in cut(body, upload)]
    for _ in range(data.draw(st.integers(0, 4))):
        if not pieces:
            break
        at = rng.randrange(len(pieces))
        change = data.draw(st.sampled_from(["lose", "repeat", "swap", "damage", "renumber"]))
        if change == "lose":
            del pieces[at]
        elif change == "repeat":
            pieces.insert(rng.randrange(len(pieces) + 1), pieces[at])
        elif change == "swap":
            other = rng.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif change == "damage":
            pieces[at] = pieces[at]._replace(data=rng.randbytes(len(pieces[at].data)))
        else:
            pieces[at] = pieces[at]._replace(number=rng.randrange(5))
    upload = data.draw(st.sampled_from([*uploads]))
    body = uploads[upload]
    # All pieces, as they lie between other uploads' pieces; and only the pieces with its own id.
    for those in (pieces, [one for one in pieces if one.upload == upload]):
        assert assembled(those, described(body, upload)) in (None, body)


@given(BODIES)
def test_an_abandoned_upload_is_never_whole(body: bytes) -> None:
    pieces = cut(body)
    for kept in range(len(pieces)):
        assert assembled(pieces[:kept], described(body)) is None


def test_what_is_wrong_is_said() -> None:
    body = b"0123456789"
    first, second = cut(body)
    assembler = Assembler(described(body))
    assembler.take(first)
    with pytest.raises(BrokenBody, match="piece 0 of 2 stands where piece 1 belongs"):
        assembler.take(first)
    with pytest.raises(BrokenBody, match="piece 1 is of upload 'other', not 'u'"):
        assembler.take(second._replace(upload="other"))
    with pytest.raises(BrokenBody, match="have 10 bytes with checksum"):
        assembler.take(second._replace(data=b"abc"))


def test_more_than_there_may_be_is_refused_when_it_comes() -> None:
    cutter = Cutter("u", 10, PIECE)
    assert [*cutter.feed(b"0123456789")] == [b"0123456"]
    with pytest.raises(BodyTooLong, match="more than 10 bytes"):
        [*cutter.feed(b"x")]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(PIECE_HEADER, None)],
        [(PIECE_HEADER, b"u")],
        [(PIECE_HEADER, b"u:-1")],
        [(PIECE_HEADER, b"\xff:\xff")],
        [(PIECE_HEADER, b"u:1234567890")],
    ],
)
def test_a_record_that_is_no_piece_is_none(headers: list[tuple[str, bytes | None]]) -> None:
    with pytest.raises(BrokenBody, match="among the pieces"):
        piece_of(Record(None, b"x", headers))


@given(st.one_of(st.none(), st.binary(max_size=80)))
def test_a_header_that_is_not_ours_says_nothing(text: bytes | None) -> None:
    found = large_body_of([(LARGE_HEADER, text)])
    assert found is None or isinstance(found, LargeBody)
    assert large_body_of([(LARGE_HEADER, b'{"size": -1}')]) is None
