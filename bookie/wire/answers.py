"""The answers to adds: gathered while a group commit reports, encoded once. Pure.

Runs that asked for it (`Flag.RANGE_ACK`) are acknowledged by one extension frame per unbroken
range; the others get BookKeeper's 28 bytes per entry, filled column by column instead of packed
one by one (60 ns instead of 200 per entry).
"""

from __future__ import annotations

import struct

from octavo.protocol.codes import Code
from octavo.protocol.extension import encode_added
from octavo.protocol.frames import ANSWER_BYTES, add_answer

_ENTRY_ID_AT = ANSWER_BYTES - 8


def add_answers(code: Code, ledger_id: int, first_entry: int, count: int) -> bytes:
    """The v2 answers to `count` consecutive adds."""
    if count == 1:
        return add_answer(code, ledger_id, first_entry)
    answers = bytearray(add_answer(code, ledger_id, 0) * count)
    ids = struct.pack(f">{count}q", *range(first_entry, first_entry + count))
    for column in range(8):
        answers[_ENTRY_ID_AT + column :: ANSWER_BYTES] = ids[column::8]
    return bytes(answers)


class Answers:
    """What is to be written to one connection at the end of this loop turn."""

    __slots__ = ("_first", "_frames", "_last", "_ledger_id")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._ledger_id = -1
        self._first = 0
        self._last = -1

    def append(self, frame: bytes) -> None:
        """Any whole answer frame."""
        self._frames.append(frame)

    def acked_range(self, ledger_id: int, first: int, last: int) -> None:
        """Adds `first … last` are durable; joined with the range before when it continues it."""
        if ledger_id == self._ledger_id and first == self._last + 1:
            self._last = last
            return
        self._close_range()
        self._ledger_id, self._first, self._last = ledger_id, first, last

    def take(self) -> list[bytes]:
        """All of it, in order; the gathering begins anew."""
        self._close_range()
        frames, self._frames = self._frames, []
        return frames

    def _close_range(self) -> None:
        if self._ledger_id >= 0:
            self._frames.append(encode_added(self._ledger_id, self._first, self._last))
            self._ledger_id = -1
            self._last = -1
