"""The writer's state machine where acks come before syncs: what is answered, what is confirmed."""

from __future__ import annotations

import random

import pytest

from octavo.ledger.actions import Confirmed, EnsembleChanged, Send, Written
from octavo.ledger.actions import WriterAction as Action
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.write.writer_state import State, WriterState
from octavo.metadata.ledgers import Fragment, LedgerMetadata


def writing(e: int = 3, qw: int = 3, qa: int = 2) -> WriterState:
    metadata = LedgerMetadata(7, e, qw, qa, (Fragment(0, tuple("abcdefgh"[:e])),))
    return WriterState(metadata, 0, deferred=True)


def down(bookie_id: str) -> BookieUnavailable:
    return BookieUnavailable(bookie_id, "connection lost")


def told(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, Written | Confirmed)]


def test_acks_answer_and_forces_confirm() -> None:
    core = writing()
    core.push(5)
    assert core.acked("a", 0, 4) == []
    assert core.acked("b", 0, 2) == [Written(2)]
    assert (core.written_to, core.lac) == (2, -1)
    assert core.forced("a", 4) == []
    assert core.forced("b", 1) == [Confirmed(1)]
    assert core.acked("c", 0, 4) == [Written(4)]
    assert core.forced("c", 4) == [Confirmed(4)]
    assert core.written_to == core.lac == 4


def test_who_failed_is_believed_nothing_that_was_not_forced() -> None:
    core = writing()
    core.push(10)
    for bookie in "ab":
        core.acked(bookie, 0, 9)
        core.forced(bookie, 3)
    assert core.lac == 3
    core.failed("a", down("a"))
    core.chosen({})
    assert core.returned("a") == [Send(0, "a", 4)]
    assert core.received.acked_to[0] == 3
    assert core.forced("b", 9) == []
    assert core.lac == 3, "it may have lost what is above"
    core.acked("a", 4, 9)
    assert told(core.forced("a", 9)) == [Confirmed(9)]


def test_who_replaces_it_gets_all_that_was_not_forced() -> None:
    core = writing()
    core.push(10)
    for bookie in "ab":
        core.acked(bookie, 0, 9)
        core.forced(bookie, 3)
    core.failed("a", down("a"))
    core.chosen({0: "x"})
    actions = core.written(1)
    assert [action for action in actions if isinstance(action, EnsembleChanged | Send)] == [
        EnsembleChanged(4, ("a", "b", "c"), ("x", "b", "c")),
        Send(0, "x", 4),
    ]
    assert core.forced("a", 3) == [], "no member any more"
    core.forced("b", 9)
    assert core.lac == 3
    core.acked("x", 4, 9)
    assert core.forced("x", 9) == [Confirmed(9)]


def test_it_closes_at_what_is_confirmed() -> None:
    core = writing()
    core.push(4)
    for bookie in "abc":
        core.acked(bookie, 0, 3)
    core.forced("a", 1)
    core.forced("b", 1)
    (write,) = core.close(2)
    assert core.state is State.CLOSING
    assert write.metadata.last_entry == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2), (4, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("seed", range(20))
def test_against_a_count_of_what_is_durable(quorums: tuple[int, int, int], seed: int) -> None:
    """Bookies come, go and lose what they have not synced: what is confirmed is on Qa of them."""
    rng = random.Random(seed)
    core = writing(*quorums)
    quorum = core.quorum
    names = list("abcdefgh"[: quorums[0]])
    volatile: dict[str, set[int]] = {name: set() for name in names}
    durable: dict[str, set[int]] = {name: set() for name in names}
    for _ in range(300):
        position = rng.randrange(len(names))
        name = names[position]
        is_down = position in core.down
        match rng.choice(("push", "ack", "ack", "force", "force", "fail", "return")):
            case "push" if core.lap < 60:
                core.push(rng.randint(1, 4))
            case "ack" if not is_down:
                reached = core.received.acked_to[position]
                last = min(core.lap, reached + rng.randint(1, 5))
                held = [n for n in range(reached + 1, last + 1) if quorum.holds(position, n)]
                if held:
                    volatile[name] |= set(held)
                    core.acked(name, held[0], held[-1])
            case "force" if not is_down:
                durable[name] |= volatile[name]
                core.forced(name, core.received.acked_to[position])
            case "fail" if not is_down:
                volatile[name] = set()
                core.failed(name, down(name))
                if core.state is State.CHOOSING:
                    core.chosen({})
            case "return":
                core.returned(name)
        assert core.lac <= core.written_to <= core.lap
        for entry_id in range(core.lac + 1):
            holders = [names[p] for p in quorum.write_set(entry_id)]
            count = sum(entry_id in durable[holder] for holder in holders)
            assert count >= quorum.ack_quorum, (entry_id, core.lac)
