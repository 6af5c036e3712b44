"""A recovery with Qa = Qw never ended because one bookie could not read its own last entry.

Found by the simulator (seed 2029358): the bookie answered the fencing read with an I/O error. Since
a bookie known to be down is replaced before it is written back to, that answer replaced it too, or
ended the recovery when there was no other bookie; yet it answers, and takes what is written back.
"""

from __future__ import annotations

from octavo.ledger.actions import ChooseReplacements, WriteBack
from octavo.ledger.errors import BookieUnavailable
from octavo.protocol.codes import BookieIOError
from tests.issues.test_recovery_waits_for_a_bookie_known_to_be_down import recovering


def test_an_error_in_an_answer_replaces_nobody() -> None:
    core = recovering()
    written = [a for a in core.entry_found(0, b"e0", 10) if isinstance(a, WriteBack)]
    assert [action.bookie_id for action in written] == ["a", "b"]
    assert core.fence_failed("a", BookieIOError("last entry unreadable")) == []
    down = core.fence_failed("a", BookieUnavailable("a", "down"))
    assert ChooseReplacements((0,), ("a", "b")) in down
