"""A writer's pending adds: frames byte for byte, cut anywhere, released when told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.ledger.quorum import Quorum
from octavo.ledger.write.pending import CHUNK_BYTES_MAX, Chunk, Pending
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry, unpack_entry
from octavo.protocol.frames import ADD_PREFIX_BYTES, Flag, add_prefix
from tests.support.ledger_world import new_ledger

PAYLOADS = [b"", b"a", b"b" * 100, b"c" * 5000, b"d" * 20_000, b"e" * 300_000, b"f"]


def pending_of(
    payloads: list[bytes],
    shape: tuple[int, int, int] = (3, 3, 2),
    digest_type: DigestType = DigestType.CRC32C,
) -> tuple[Pending, list[Chunk]]:
    metadata = replace(new_ledger(*shape), digest_type=digest_type, password=b"pw")
    pending = Pending(metadata, Quorum(*shape))
    chunks, start = [], 0
    while start < len(payloads):
        chunk, start = pending.encode(payloads, start, 3)
        chunks.append(chunk)
    return pending, chunks


def expected(entry_id: int, payloads: list[bytes], digest_type: DigestType) -> bytes:
    digest = digest_for(digest_type, b"pw")
    length = sum(map(len, payloads[: entry_id + 1]))
    entry = pack_entry(digest, 7, entry_id, 3, length, payloads[entry_id])
    flags = Flag.CRC32C | Flag.RANGE_ACK if digest_type is DigestType.CRC32C else 0
    return add_prefix(master_key(b"pw"), len(entry), flags) + entry


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_frames_are_those_of_the_protocol(digest_type: DigestType) -> None:
    pending, chunks = pending_of(PAYLOADS, digest_type=digest_type)
    sent = b"".join(b"".join(pending.frames(chunk)[0]) for chunk in chunks)
    wanted = [expected(i, PAYLOADS, digest_type) for i in range(len(PAYLOADS))]
    assert sent == b"".join(wanted)
    assert sum(pending.frames(chunk)[1] for chunk in chunks) == len(sent) == pending.held_bytes
    entry = unpack_entry(digest_for(digest_type, b"pw"), 7, 5, wanted[5][ADD_PREFIX_BYTES:])
    assert entry.last_add_confirmed == 3


def test_large_payloads_are_not_copied() -> None:
    payload = b"x" * 64_000
    pending, (chunk,) = pending_of([payload])
    frames, _ = pending.frames(chunk)
    assert any(part is payload for part in frames)


def test_long_runs_become_several_chunks() -> None:
    _, chunks = pending_of([b"x" * 1000] * 500)
    assert len(chunks) > 2
    assert all(chunk.size < CHUNK_BYTES_MAX + 1100 for chunk in chunks)
    assert [c.first_entry for c in chunks[1:]] == [c.last_entry + 1 for c in chunks[:-1]]


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2), (5, 3, 2)])
def test_any_position_can_be_sent_any_part_again(shape: tuple[int, int, int]) -> None:
    payloads = [b"%d" % i * 10 for i in range(30)]
    quorum = Quorum(*shape)
    pending, _ = pending_of(payloads, shape)
    for position in range(shape[0]):
        for first in (0, 7, 29):
            sent, at, size = b"", first, 0
            while at <= 25 or at == first:
                frames, bytes_sent, at = pending.frames_for(position, at, max(25, first))
                sent += b"".join(frames)
                size += bytes_sent
            wanted = [
                expected(i, payloads, DigestType.CRC32C)
                for i in range(first, max(25, first) + 1)
                if quorum.holds(position, i)
            ]
            assert sent == b"".join(wanted)
            assert size == len(sent)


def test_letting_go_and_the_length_at_an_entry() -> None:
    payloads = [b"x" * (i % 7) for i in range(5000)]
    metadata = new_ledger()
    pending = Pending(metadata, Quorum(3, 3, 2))
    for payload in payloads:
        pending.encode([payload], 0, -1)
    for released in (-1, 0, 99, 3000, 4998, 4999):
        pending.release(released)
        assert pending.held_from == released + 1
        assert pending.length_at(released) == sum(map(len, payloads[: released + 1]))
        if released + 1 < len(payloads):
            assert pending.chunk_of(released + 1).first_entry == released + 1
            with pytest.raises(AssertionError):
                pending.chunk_of(max(released, 0) if released >= 0 else -1)
    assert pending.held_bytes == 0
