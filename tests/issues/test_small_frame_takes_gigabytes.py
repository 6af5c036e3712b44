"""A frame of five kilobytes made a bookie take two gigabytes.

An extension request is msgpack, and msgpack takes the memory of an array when its length is
announced. The bound of 262,144 items held for each array, not for arrays in arrays: nested a
thousand deep they came to two gigabytes, before anybody saw that nothing followed. Found by reading
mutated bytes with an eye on memory (tests/fuzz).
"""

from __future__ import annotations

import tracemalloc

import pytest

from octavo.protocol.codes import ProtocolError
from octavo.protocol.extension import Op, decode_request, encode_request


def test_nested_arrays_take_no_more_than_they_hold() -> None:
    front = encode_request(Op.READ_LAC, 1, {})[:8]
    body = (b"\xdd" + (262_144).to_bytes(4)) * 1000
    tracemalloc.start()
    try:
        for announced in (b"\xdd" + (60).to_bytes(4)) * 1000, body:
            with pytest.raises(ProtocolError, match="is not msgpack"):
                decode_request(memoryview(front + announced))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20
