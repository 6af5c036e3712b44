"""One socket to an Apache bookie in v3 frames, for explicit LACs, which v2 lacks.

Without them a reader of an idle ledger would wait for the last entries until the next add.
"""

from __future__ import annotations

from octavo.ledger.bookies.connection import BookieConnection, RequestDone, _Waiting
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.v3_questions import (
    V3Answer,
    parse_v3_answers,
    read_lac_request,
    write_lac_request,
)


class V3Connection(BookieConnection):
    def write_lac(
        self, ledger_id: int, lac: int, key: bytes, signed: bytes, done: RequestDone
    ) -> None:
        """Send an explicit LAC; `signed` is the result of `entry.pack_lac`."""
        waiting = _Waiting(f"LAC {lac} of ledger {ledger_id}", done)
        if self._begin(waiting, self._timeout_s):
            request_id = self._number(waiting)
            frame = write_lac_request(request_id, ledger_id, lac, key, signed)
            self._send((frame,), len(frame))

    def read_lac(self, ledger_id: int, done: RequestDone) -> None:
        """Read the LAC; the answer may have `lac`, signed, and `entry`, the last one."""
        waiting = _Waiting(f"read of the LAC of ledger {ledger_id}", done)
        if self._begin(waiting, self._timeout_s):
            frame = read_lac_request(self._number(waiting), ledger_id)
            self._send((frame,), len(frame))

    def _take(self, data: memoryview) -> int:
        answers, end = parse_v3_answers(data, FRAME_BYTES_MAX)
        for answer in answers:
            waiting = self._numbered(answer.request_id)
            error = self._error(answer.code, waiting)
            self._answer(waiting, error, _body(answer))
        return end


def _body(answer: V3Answer) -> dict[str, bytes]:
    found = answer.message.readLacResponse
    body = {"lac": found.lacBody, "entry": found.lastEntryBody}
    return {name: data for name, data in body.items() if data}
