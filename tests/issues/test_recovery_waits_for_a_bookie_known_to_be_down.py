"""A recovery never ended when the failure of a fence came after the write-back had begun.

It wrote back to a bookie whose fence was still unanswered. Then the fence failed: the bookie was
noted as down, but nothing replaced it; and when the write-back failed as well, that was no news
any more. With Qa = Qw the entry could never reach its ack quorum, and nobody was told.

Found by the model check (M2): from that state no end could be reached.
"""

from __future__ import annotations

from octavo.ledger.actions import ChooseReplacements, WriteBack
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.recover.recovery_state import RecoveryState
from octavo.ledger.write.writer_state import State
from tests.support.ledger_world import new_ledger

DOWN = BookieUnavailable("a", "down")


def recovering() -> RecoveryState:
    """E = Qw = Qa = 2: b has answered the fence, a has not."""
    core = RecoveryState(7)
    core.metadata_read(new_ledger(2, 2, 2), 0)
    core.written(1)
    core.fenced("b", -1)
    return core


def test_a_late_fence_failure_replaces_the_bookie_that_is_written_back_to() -> None:
    core = recovering()
    written = [a for a in core.entry_found(0, b"e0", 10) if isinstance(a, WriteBack)]
    assert [action.bookie_id for action in written] == ["a", "b"]
    assert ChooseReplacements((0,), ("a", "b")) in core.fence_failed("a", DOWN)
    assert WriteBack(0, "c", 0, 0) in core.chosen({0: "c"})
    assert core.failed("a", DOWN) == [], "it is no member any more"


def test_a_late_fence_failure_alone_replaces_nothing() -> None:
    """Before there is anything to write back no bookie is needed."""
    core = recovering()
    assert core.fence_failed("a", DOWN) == []
    assert core._writing is not None
    assert core._writing.state is State.OPEN
    actions = core.entry_found(0, b"e0", 10)
    assert ChooseReplacements((0,), ("a", "b")) in actions
