"""A journal block or a limbo file with a good checksum and a senseless body stopped a bookie with a
`struct.error` or a `KeyError`: no file named, no word of what to do. A release that does not know a
newer one's record is such a case. Found by reading mutated bytes (tests/fuzz).
"""

from __future__ import annotations

import struct

import msgpack
import pytest
from crc32c import crc32c

from octavo.bookie.journal.format import JournalDamaged, MetaOp, encode_meta
from octavo.bookie.journal.reader import records_of
from octavo.bookie.ledgers.limbo import LimboDamaged, decode_limbo
from tests.support.storage_support import KEY, make_run


@pytest.mark.parametrize("cut", [1, 7, 9, 30])
def test_a_record_cut_short(cut: int) -> None:
    meta = encode_meta(MetaOp.EXPLICIT_LAC, 1, KEY, 5)
    for body in (meta + meta[:cut], meta + make_run(1, 0, [b"x" * 50]).frames[:cut]):
        with pytest.raises(JournalDamaged):
            list(records_of(body))


def test_an_add_that_claims_more_than_there_is() -> None:
    frame = bytearray(make_run(1, 0, [b"x" * 50]).frames)
    frame[0:4] = struct.pack(">I", 1000)
    with pytest.raises(JournalDamaged):
        list(records_of(bytes(frame)))


def test_a_limbo_body_of_another_kind() -> None:
    for body in (b"", msgpack.packb([1]), msgpack.packb({"whole": 3}), b"\xc1"):
        front = struct.pack(">8sII", b"OctvLimb", 1, len(body)) + body
        with pytest.raises(LimboDamaged):
            decode_limbo(front + struct.pack(">I", crc32c(front)))
