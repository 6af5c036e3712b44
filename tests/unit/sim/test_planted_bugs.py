"""Planted bugs fit their code, change its behaviour, and leave no trace."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from octavo.bookie.journal.format import Meta, MetaOp
from octavo.bookie.ledgers import rules as ledger_rules
from octavo.bookie.ledgers.cookies import check_cookies
from octavo.bookie.ledgers.state import LedgerState
from octavo.broker.errors import StaleProducerEpoch
from octavo.broker.state.producers import ProducerTable
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.quorum import Acks, Quorum
from octavo.ledger.recover.recovery_state import RecoveryState
from octavo.ledger.write.writer_state import WriterState
from octavo.metadata.cookie import Cookie
from octavo.metadata.ledgers import Fragment, LedgerMetadata
from octavo.protocol.codes import OctavoError
from tests.sim import mutants
from tests.sim.mutants import ABSENT, MUTANTS, TESTED, planted
from tests.sim.mutants.measured import Finding, measured
from tests.sim.mutants.page import PAGE, page, taken_in
from tests.sim.mutants.planting import Edit, EditCameLoose, function_of, planted_edits
from tests.sim.mutants.sections import SECTIONS
from tests.support.ledger_world import Recoverer, World, content, new_ledger

CANON = 25


@pytest.mark.parametrize("name", [*MUTANTS, *TESTED])
def test_it_fits_changes_the_function_and_is_undone_exactly(name: str) -> None:
    edits = MUTANTS[name].edits if name in MUTANTS else TESTED[name].edits
    functions = [function_of(edit.target) for edit in edits]
    before = [function.__code__ for function in functions]
    with planted_edits(edits):
        for function, code in zip(functions, before, strict=True):
            now = function.__code__
            assert _what_it_does(now) != _what_it_does(code)
            assert now.co_varnames[: now.co_argcount] == code.co_varnames[: code.co_argcount]
    for function, code in zip(functions, before, strict=True):
        assert function.__code__ is code


def _what_it_does(code: CodeType) -> tuple[object, ...]:
    return code.co_code, code.co_consts, code.co_names


def test_the_whole_canon_is_planted_or_says_why_not() -> None:
    planted_numbers = {mutant.canon for mutant in MUTANTS.values()} - {0}
    absent_numbers = {absent.canon for absent in ABSENT}
    assert planted_numbers | absent_numbers == set(range(1, CANON + 1))
    assert not planted_numbers & absent_numbers


def test_every_file_of_planted_bugs_is_in_one_section() -> None:
    files = [path.stem for path in Path(mutants.__file__).parent.glob("*_bugs.py")]
    modules = [importlib.import_module(f"tests.sim.mutants.{name}") for name in files]
    written = [
        bug.name
        for module in modules
        for bug in (*getattr(module, "MUTANTS", ()), *getattr(module, "BUGS", ()))
    ]
    shown = [one.name for section in SECTIONS for one in section.mutants]
    shown += [one.name for section in SECTIONS for one in section.tested]
    assert sorted(written) == sorted(shown)


def test_the_page_is_what_the_planted_bugs_and_what_was_measured_say() -> None:
    found = measured()
    assert PAGE.read_text() == page(found), "python -m tests.sim.mutants.page writes it"
    assert set(found) == {*MUTANTS, *TESTED}, (
        "search for the new ones: python -m tests.sim mutants --json --only NAME,NAME > RESULTS, "
        "then python -m tests.sim.mutants.page RESULTS"
    )


def test_what_was_measured_takes_in_results() -> None:
    known = {"checkpoint-skipped": Finding("P38", 3), "gone-from-the-code": Finding("P1", 1)}
    searched = '{"name": "volatile-fence", "seed": 6, "seeds": 7, "caught_by": "at 3.5 s: P24 x"}'
    missed = '{"name": "checkpoint-skipped", "seed": null, "seeds": 9, "caught_by": ""}'
    judged = '{"name": "gap-of-one", "failed": "unit/t.py::test"}'
    assert taken_in(known, ["make: x", searched, judged]) == {
        "checkpoint-skipped": Finding("P38", 3),
        "gap-of-one": Finding("unit/t.py::test"),
        "volatile-fence": Finding("P24", 7),
    }
    assert taken_in(known, [missed]) == {}


def test_no_bug_is_planted_twice() -> None:
    every: list[Any] = [bug for section in SECTIONS for bug in (*section.mutants, *section.tested)]
    assert len({bug.name for bug in every}) == len(every)
    assert len({bug.edits for bug in every}) == len(every)


def test_an_edit_that_fits_no_more_is_an_error() -> None:
    gone = Edit("octavo.ledger.quorum:Quorum.covers", "what never stood there", "")
    with pytest.raises(EditCameLoose), planted_edits([gone]):
        pass
    twice = Edit("octavo.ledger.quorum:Quorum.covers", "self", "me")
    with pytest.raises(EditCameLoose), planted_edits([twice]):
        pass


def test_it_is_undone_when_the_seed_raises() -> None:
    code = Quorum.covers.__code__
    with pytest.raises(ZeroDivisionError), planted("fence-coverage-by-count"):
        raise ZeroDivisionError
    assert Quorum.covers.__code__ is code


# ---------------------------------------------------------------------- what some of them do


def _metadata(e: int = 3, qw: int = 3, qa: int = 2) -> LedgerMetadata:
    return LedgerMetadata(7, e, qw, qa, (Fragment(0, tuple("abcdefgh"[:e])),))


def _down(bookie: str) -> BookieUnavailable:
    return BookieUnavailable(bookie, "down")


def _fence_answers(*bookies: str) -> str:
    """Return a recovery's actions when these bookies answer the fence without knowing the
    ledger."""
    core = RecoveryState(7)
    fragments = (Fragment(0, ("x", "y", "z")), Fragment(5, ("a", "b", "c")))
    core.metadata_read(LedgerMetadata(7, 3, 3, 2, fragments), 0)
    core.written(1)
    return str([core.fenced(bookie, -1) for bookie in bookies])


def _late_failure() -> str:
    core = WriterState(_metadata(), 0)
    core.failed("a", _down("a"))
    return str(core.chosen({0: "s"}))


def _acks_after_a_change(e: int, qw: int, replaced: str, stays: tuple[str, ...]) -> int:
    """Return the LAC after a change, when the replaced bookie had acked entries that others
    had not."""
    core = WriterState(_metadata(e, qw, 2), 0)
    core.push(2)
    for bookie in (replaced, *stays):
        core.acked(bookie, 1, 1)
    core.failed(replaced, _down(replaced))
    core.chosen({core.ensemble.index(replaced): "s"})
    core.written(1)
    for bookie in core.ensemble:
        if bookie != "s":
            core.acked(bookie, 0, 0)
    return core.lac


def _close_after_a_failure() -> str:
    core = WriterState(_metadata(), 0)
    core.push(2)
    core.acked("a", 0, 1)
    core.acked("b", 0, 1)
    core.failed("c", _down("c"))
    core.chosen({})
    return str(core.close(20))


def _confirmed_by_one() -> int:
    acks = Acks(Quorum(3, 3, 2), -1)
    acks.add(0, 0, 0)
    return acks.confirmed(-1, 0)


def _recovered(unknown: str) -> object:
    """Recover when entry 1 is on b alone, and b, c and a answer as `unknown` lets them."""
    world = World("abc", new_ledger())
    for bookie in "abc":
        world.bookies[bookie].entries[0] = (content(0), -1)
    recoverer = Recoverer(world)
    recoverer.on_deliver = lambda label: (
        [setattr(world.bookies[b], "unknown", True) for b in unknown] if "read 1 " in label else 0
    )
    recoverer.run_from_start()
    return world.metadata.state, world.metadata.last_entry


def _fence_after_replay() -> bool:
    state = LedgerState(b"k" * 20)
    ledger_rules.repeat(state, Meta(MetaOp.FENCE, 1, b"k" * 20, -1))
    return state.fenced


def _empty_disk() -> object:
    cookie = Cookie("b1", "/j", ("/l",), "cluster", incarnation="1")
    return check_cookies(cookie, cookie, {"/j": None, "/l": None}, [])


def _older_epoch() -> object:
    table = ProducerTable(8)
    table.accept(1, 2, 0, 1, 0)
    try:
        return table.check(1, 1, 5, 1)
    except StaleProducerEpoch:
        return "refused"


def _two_failures() -> str:
    core = WriterState(_metadata(), 0)
    core.failed("a", _down("a"))
    core.chosen({0: "s"})
    return str(core.failed("b", _down("b")))


PROBES: dict[str, Callable[[], object]] = {
    "recovery-starts-at-minus-one": lambda: _fence_answers("a", "b"),
    "hanging-bookie-blocks-fencing": lambda: _fence_answers("a", "b"),
    "close-by-the-lac-of-a-minority": lambda: _fence_answers("a"),
    "fence-coverage-by-count": lambda: Quorum(4, 2, 2).covers([0]),
    "unknown-counted-as-negative": lambda: _recovered("ac"),
    "deferred-change-not-stored": _late_failure,
    "pending-adds-not-rechecked": lambda: _acks_after_a_change(3, 2, "c", ("b",)),
    "change-keeps-old-acks": lambda: _acks_after_a_change(3, 2, "c", ("b",)),
    "second-failure-during-a-change": _two_failures,
    "close-after-a-failed-add": _close_after_a_failure,
    "ack-quorum-of-one": _confirmed_by_one,
    "fence-not-replayed": _fence_after_replay,
    "empty-disk-joins": lambda: _outcome(_empty_disk),
    "late-message-of-an-old-epoch": _older_epoch,
}


def _outcome(call: Callable[[], object]) -> str:
    try:
        return str(call())
    except OctavoError as error:
        return error.name


@pytest.mark.parametrize("name", PROBES)
def test_what_it_does(name: str) -> None:
    """A call ends otherwise while the bug is planted, and as before afterwards."""
    before = PROBES[name]()
    with planted(name):
        assert PROBES[name]() != before
    assert PROBES[name]() == before
