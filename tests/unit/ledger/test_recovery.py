"""Recovery's state machine (numbers: reference, §3.2), and its reading of answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from octavo.ledger.actions import (
    ChooseReplacements,
    Done,
    EndFound,
    Failed,
    Fence,
    FenceHolds,
    Read,
    WriteBack,
    WriteMetadata,
)
from octavo.ledger.errors import BookieUnavailable, RecoveryFailed
from octavo.ledger.options import LedgerOptions
from octavo.ledger.recover.recovery import _BUSY_PAUSE_S, Recovery
from octavo.ledger.recover.recovery_state import RecoveryState
from octavo.ledger.write.writer_state import State
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.codes import (
    BookieIOError,
    Code,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    OctavoError,
    Unauthorized,
    UnknownState,
)
from tests.support.ledger_world import Recoverer, World, content, new_ledger


def world(bookies: str = "abc", metadata: LedgerMetadata | None = None) -> World:
    return World(bookies, metadata or new_ledger())


def store(world: World, entry_id: int, on: str, lac: int = -1) -> None:
    for bookie in on:
        world.bookies[bookie].entries[entry_id] = (content(entry_id), lac)


def recovered(world: World) -> LedgerMetadata:
    result = Recoverer(world).run_from_start()
    assert isinstance(result, Done), result
    assert result.metadata == world.metadata
    assert world.metadata.state is LedgerState.CLOSED
    return result.metadata


def failed(world: World) -> RecoveryFailed:
    result = Recoverer(world).run_from_start()
    assert isinstance(result, Failed), result
    assert isinstance(result.error, RecoveryFailed)
    assert world.metadata.state is LedgerState.IN_RECOVERY, "P30: retryable, never truncated"
    return result.error


# ---------------------------------------------------------------------- where the ledger ends


@pytest.mark.parametrize("holders", ["", "a", "b", "c", "ab", "bc", "ac", "abc"])
@pytest.mark.parametrize("squatted", ["a", "b", "ab", "bc", "abc"])
@pytest.mark.parametrize("spare", ["", "d"])
def test_a_ledger_that_others_have_a_part_of_is_closed(
    holders: str, squatted: str, spare: str
) -> None:
    """A client with the id under another key never acked: acked entries stay, and the close
    succeeds."""
    w = world("abc" + spare)
    holders = "".join(one for one in holders if one not in squatted)
    for bookie in squatted:
        w.bookies[bookie].squatted = True
    store(w, 0, holders)
    last = recovered(w).last_entry
    assert last == 0 or len(holders) < 2, "two of three acked it"
    assert last == -1 or holders, "nobody invents it"
    kept = [one for one, found in w.bookies.items() if 0 in found.entries]
    assert last == -1 or len(kept) >= 2


def test_others_are_replaced_where_an_entry_is_kept() -> None:
    w = world("abcd")
    w.bookies["a"].squatted = True
    store(w, 0, "bc")
    assert set(recovered(w).fragments[-1].bookies) == set("bcd")


def test_41_an_empty_ledger_closes_at_minus_one() -> None:
    """P37, testEmptyLedgerRecovery; also with one bookie down (#2273)."""
    w = world()
    w.bookies["b"].up = False
    assert (recovered(w).last_entry, w.metadata.length) == (-1, 0)


def test_the_confirmed_end_is_found_and_its_length() -> None:
    w = world()
    for entry_id in range(5):
        store(w, entry_id, "abc", entry_id - 1)
    metadata = recovered(w)
    assert (metadata.last_entry, metadata.length) == (4, 50)


def test_an_entry_that_may_have_been_acked_is_kept_and_written_back() -> None:
    """P3; afterwards it is on an ack quorum of its write set (P5)."""
    w = world()
    store(w, 0, "abc")
    store(w, 1, "bc")
    assert recovered(w).last_entry == 1
    assert all(1 in bookie.entries for bookie in w.bookies.values())


def test_an_entry_on_one_bookie_of_three_may_be_kept_or_not() -> None:
    """Both ends are right: it was never acked. A kept entry is written back first."""
    ends = set()
    for holder in "abc":
        w = world()
        store(w, 0, "abc")
        store(w, 1, holder)
        ends.add(recovered(w).last_entry)
        copies = sum(1 in bookie.entries for bookie in w.bookies.values())
        assert copies == (3 if w.metadata.last_entry == 1 else 1)
    assert ends == {0, 1}


def test_39_a_gap_above_the_confirmed_ends_the_ledger() -> None:
    """testRecoveryOnEntryGap: entries beyond the gap were never acked (P9)."""
    w = world()
    store(w, 0, "abc")
    store(w, 2, "abc")
    assert recovered(w).last_entry == 0


def test_27_two_denials_are_needed_with_qw_3_qa_2() -> None:
    """P27, P29: one denial and two silent bookies prove nothing."""
    w = world()
    store(w, 0, "abc")
    core = Recoverer(w)
    core.on_deliver = lambda label: (
        [setattr(w.bookies[b], "unknown", True) for b in "ac"] if label == "read 1 b" else None
    )
    result = core.run_from_start()
    assert isinstance(result, Failed)
    assert "entry 1" in str(result.error)
    assert w.metadata.state is LedgerState.IN_RECOVERY


def test_an_unknown_answer_is_no_denial_but_a_copy_is_a_copy() -> None:
    """P29, P41."""
    w = world()
    store(w, 0, "abc")
    store(w, 1, "b")
    core = Recoverer(w)
    core.on_deliver = lambda label: (
        setattr(w.bookies["a"], "unknown", True) if label == "read 1 a" else None
    )
    result = core.run_from_start()
    assert isinstance(result, Done)
    assert result.metadata.last_entry == 1


# ---------------------------------------------------------------------- fencing


def test_24_a_hung_bookie_does_not_stop_the_fence() -> None:
    """testFencingWithHungBookie, #1067: Qw − Qa + 1 answers suffice, the third never comes."""
    w = world()
    store(w, 0, "abc")
    recoverer = Recoverer(w)
    recoverer.start()
    recoverer.deliver()  # the mark
    hung = recoverer.labels.index("fence b")
    del recoverer.inbox[hung]
    recoverer.deliver()
    recoverer.deliver()
    assert [a for a in recoverer.log if isinstance(a, FenceHolds)]


def test_29_nothing_is_guessed_when_all_are_down() -> None:
    """testCantRecoverAllDown."""
    w = world()
    for bookie in w.bookies.values():
        bookie.up = False
    assert "cannot fence" in str(failed(w))


def test_coverage_is_per_window_not_a_count() -> None:
    """P26, PR #2281: three of five answered, but the window c, d, e has one answer only."""
    w = world("abcde", new_ledger(5, 3, 2))
    for name in "de":
        w.bookies[name].up = False
    assert "cannot fence" in str(failed(w))


def test_coverage_with_striping_holds_with_scattered_failures() -> None:
    w = world("abcde", new_ledger(5, 3, 2))
    w.bookies["b"].up = False
    w.bookies["e"].up = False
    # Windows: abc, bcd, cde, dea, eab: eab has one answer.
    assert "cannot fence" in str(failed(w))
    w.bookies["e"].up = True
    assert recovered(w).last_entry == -1


def test_42_no_such_ledger_counts_but_a_failure_beside_it_does_not() -> None:
    """testBookieFailsAfterLedgerMissingOnFirst."""
    w = world()
    w.bookies["b"].up = w.bookies["c"].up = False
    assert "cannot fence" in str(failed(w))


def test_a_wrong_key_ends_the_recovery_at_once() -> None:
    """P49, no. 26."""
    core = RecoveryState(7)
    core.metadata_read(new_ledger(state=LedgerState.IN_RECOVERY), 1)
    (result,) = core.fence_failed("a", Unauthorized("wrong key"))
    assert isinstance(result, Failed)


def test_34_every_recovery_read_fences() -> None:
    """#2614, P28: bookie c missed the fence; reading from it fences it."""
    w = world()
    store(w, 0, "abc")
    w.bookies["c"].up = False
    recoverer = Recoverer(w)
    recoverer.on_deliver = lambda label: (
        setattr(w.bookies["c"], "up", True) if label.startswith("read") else None
    )
    assert isinstance(recoverer.run_from_start(), Done)
    assert w.bookies["c"].fenced


def test_35_a_brand_new_last_ensemble_proves_where_it_starts() -> None:
    """#2615, P32: its bookies know no LAC; the fragment starts above a confirmed entry."""
    fragments = (Fragment(0, tuple("abc")), Fragment(10, tuple("def")))
    w = world("abcdef", replace(new_ledger(), fragments=fragments))
    store(w, 9, "abc", 8)
    metadata = recovered(w)
    assert (metadata.last_entry, metadata.length) == (9, 100)
    assert metadata.fragments == fragments


def test_a_confirmed_entry_that_nobody_has_is_a_failure_not_an_end() -> None:
    fragments = (Fragment(0, tuple("abc")), Fragment(10, tuple("def")))
    w = world("abcdef", replace(new_ledger(), fragments=fragments))
    assert "entry 9" in str(failed(w))


# ---------------------------------------------------------------------- writing back


def test_33_a_bookie_that_fails_during_write_back_is_replaced() -> None:
    """testRecoveryOneBookieFailsDuring: in memory first, published by the close (P31)."""
    w = world("abcd")
    store(w, 0, "abc")
    store(w, 1, "ab")
    recoverer = Recoverer(w)
    seen: list[tuple[Fragment, ...]] = []

    def before(label: str) -> None:
        if label.startswith("write"):
            w.bookies["b"].up = False
            seen.append(w.metadata.fragments)

    recoverer.on_deliver = before
    result = recoverer.run_from_start()
    assert isinstance(result, Done)
    assert set(seen) == {(Fragment(0, tuple("abc")),)}, "not published before the close"
    assert result.metadata.last_entry == 1
    newest = result.metadata.fragments[-1]
    assert newest.bookies == ("a", "d", "c")
    assert all(e in w.bookies["d"].entries for e in range(newest.first_entry, 2))


def test_33_a_bookie_down_from_the_start_is_replaced_at_the_first_write_back() -> None:
    """testRecoveryBookieFailedAtStart."""
    w = world("abcd")
    store(w, 0, "ab", -1)
    w.bookies["c"].up = False
    metadata = recovered(w)
    assert metadata.last_entry == 0
    assert metadata.fragments == (Fragment(0, ("a", "b", "d")),)
    assert 0 in w.bookies["d"].entries


def test_30_fenced_but_nobody_to_write_back_to_fails_and_does_not_close() -> None:
    """testCanReadLacButCantWrite."""
    w = world()
    store(w, 0, "a")
    recoverer = Recoverer(w)

    def before(label: str) -> None:
        if label.startswith("write"):
            w.bookies["b"].up = w.bookies["c"].up = False

    recoverer.on_deliver = before
    result = recoverer.run_from_start()
    assert isinstance(result, Failed)
    assert w.metadata.state is LedgerState.IN_RECOVERY


def test_reads_go_to_the_ensembles_as_at_the_start() -> None:
    """P31: also after a write-back replaced a bookie."""
    w = world("abcd")
    for entry_id in range(40):
        store(w, entry_id, "ab")
    w.bookies["c"].up = False
    recoverer = Recoverer(w)
    assert isinstance(recoverer.run_from_start(), Done)
    asked = {bookie for a in recoverer.log if isinstance(a, Read) for bookie in a.bookies}
    assert asked == {"a", "b", "c"}
    assert w.metadata.last_entry == 39
    assert set(w.bookies["d"].entries) == set(range(40))


def test_41_a_long_tail_is_read_in_growing_steps() -> None:
    """testBatchRecoverySize13: bounded read-ahead, complete result."""
    w = world()
    for entry_id in range(1000):
        store(w, entry_id, "abc"[entry_id % 3])
    recoverer = Recoverer(w)
    recoverer.start()
    most = 0
    while recoverer.inbox:
        most = max(most, len(recoverer.inbox))
        recoverer.deliver()
    assert recoverer.result is not None
    assert (w.metadata.last_entry, w.metadata.length) == (999, 10_000)
    assert most < 1500
    assert not recoverer.core.entries


# ---------------------------------------------------------------------- the record


def test_a_closed_ledger_needs_nothing() -> None:
    w = world(metadata=new_ledger(state=LedgerState.CLOSED, last_entry=3, length=40))
    for bookie in w.bookies.values():
        bookie.up = False
    assert recovered(w).last_entry == 3


def test_31_closed_by_another_meanwhile_is_adopted() -> None:
    """testMetadataClosedDuringRecovery."""
    w = world()
    store(w, 0, "abc")
    recoverer = Recoverer(w)

    def before(label: str) -> None:
        if label.startswith("cas") and w.metadata.state is LedgerState.IN_RECOVERY:
            w.cas(replace(w.metadata, state=LedgerState.CLOSED, last_entry=0, length=10), 1)

    recoverer.on_deliver = before
    result = recoverer.run_from_start()
    assert isinstance(result, Done)
    assert result.adopted
    assert result.metadata == w.metadata


def test_32_the_writer_changed_the_ensemble_before_our_mark() -> None:
    """testNewEnsembleAddedDuringRecovery: start over with the present record."""
    w = world("abcd")
    store(w, 0, "abc")
    store(w, 1, "abd")
    recoverer = Recoverer(w)
    recoverer.start()
    changed = (*w.metadata.fragments, Fragment(1, tuple("abd")))
    w.cas(replace(w.metadata, fragments=changed), 0)
    result = recoverer.run()
    assert isinstance(result, Done)
    assert result.metadata.last_entry == 1
    assert result.metadata.fragments == changed


def test_an_older_fragment_repaired_during_recovery_is_kept() -> None:
    """P52: merge and try again."""
    fragments = (Fragment(0, tuple("abc")), Fragment(1, tuple("abd")))
    w = world("abcde", replace(new_ledger(), fragments=fragments))
    store(w, 0, "abc")
    store(w, 1, "abd", 0)
    recoverer = Recoverer(w)

    def before(label: str) -> None:
        if label.startswith("cas") and w.version == 1:
            repaired = (Fragment(0, tuple("abe")), w.metadata.fragments[1])
            w.cas(replace(w.metadata, fragments=repaired), 1)

    recoverer.on_deliver = before
    result = recoverer.run_from_start()
    assert isinstance(result, Done)
    assert result.metadata.fragments == (Fragment(0, tuple("abe")), Fragment(1, tuple("abd")))
    assert len([a for a in recoverer.log if isinstance(a, EndFound)]) == 1, "not started over"


def test_36_37_two_recoverers_end_with_the_same_close() -> None:
    """testConcurrentRecovery, testRecoverBeforeWriteMetadata: the slower one adopts the close."""
    for stall in range(60):
        w = world()
        store(w, 0, "abc")
        store(w, 1, "b")
        store(w, 2, "c")
        slow, quick = Recoverer(w), Recoverer(w)
        slow.start()
        for _ in range(stall):
            if slow.inbox:
                slow.deliver()
        first = quick.run_from_start()
        second = slow.run()
        assert isinstance(first, Done)
        assert isinstance(second, Done)
        assert first.metadata == second.metadata == w.metadata
        assert w.metadata.last_entry == 2


def test_41_a_rolling_restart_during_recovery() -> None:
    """testLedgerRecoveryWithRollingRestart: fails or succeeds, and a later attempt succeeds."""
    for victim in "abc":
        for moment in range(40):
            w = world()
            for entry_id in range(3):
                store(w, entry_id, "abc")
            recoverer = Recoverer(w)
            count = 0

            def before(
                label: str, w: World = w, victim: str = victim, moment: int = moment
            ) -> None:
                nonlocal count
                count += 1
                w.bookies[victim].up = count != moment

            recoverer.on_deliver = before
            recoverer.run_from_start()
            for bookie in w.bookies.values():
                bookie.up = True
            assert recovered(w).last_entry == 2


def test_a_recovery_that_failed_can_be_tried_again() -> None:
    w = world()
    store(w, 0, "abc")
    w.bookies["a"].up = w.bookies["b"].up = False
    failed(w)
    w.bookies["a"].up = True
    assert recovered(w).last_entry == 0


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_the_mark_is_written_once(state: LedgerState) -> None:
    core = RecoveryState(7)
    actions = core.metadata_read(new_ledger(state=state), 4)
    marks = [a for a in actions if isinstance(a, WriteMetadata)]
    assert len(marks) == (state is LedgerState.OPEN)


def test_who_acked_all_but_the_last_still_owes() -> None:
    """Otherwise its silence goes unreported, and a recovery that wrote one entry back never
    ends."""
    core = RecoveryState(7)
    core.metadata_read(replace(new_ledger(), state=LedgerState.IN_RECOVERY), 1)
    for bookie in "abc":
        core.fenced(bookie, -1)
    for entry_id in range(3):
        core.entry_found(entry_id, b"x", entry_id + 1)
    assert core.is_owing("a", 2)
    assert not core.is_owing("z", 2), "it is not of the ensemble"
    core.acked("a", 0, 1)
    assert core.is_owing("a", 2)
    assert not core.is_owing("a", 1)
    core.acked("a", 2, 2)
    assert not core.is_owing("a", 2)
    assert core.is_owing("b", 2)


# A recovery wrote back to a bookie whose fence then failed: it was noted as down and not replaced.
# With Qa = Qw the entry could never reach its ack quorum.

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


def test_an_error_in_an_answer_replaces_nobody() -> None:
    """A bookie that cannot read its own last entry still answers, and takes write-backs.
    Replaced, with Qa = Qw the recovery never ended."""
    core = recovering()
    written = [a for a in core.entry_found(0, b"e0", 10) if isinstance(a, WriteBack)]
    assert [action.bookie_id for action in written] == ["a", "b"]
    assert core.fence_failed("a", BookieIOError("last entry unreadable")) == []
    down = core.fence_failed("a", BookieUnavailable("a", "down"))
    assert ChooseReplacements((0,), ("a", "b")) in down


# When the newest fragment changes, a recovery starts over. A late answer to the earlier attempt
# counted for the bookie now at that position, which was never fenced or asked: the end could lie
# before an acked entry.


def in_recovery(*bookies: str) -> LedgerMetadata:
    return LedgerMetadata(7, 3, 3, 2, (Fragment(0, bookies),), state=LedgerState.IN_RECOVERY)


def restarted() -> RecoveryState:
    """Make a recovery that found an empty ledger, and then that its newest fragment had changed."""
    core = RecoveryState(7)
    assert core.metadata_read(in_recovery("a", "b", "c"), 1) == [Fence("a"), Fence("b"), Fence("c")]
    core.fenced("a", -1)
    core.fenced("b", -1)
    core.entry_absent(0, "a")
    (*_, close) = core.entry_absent(0, "b")
    assert isinstance(close, WriteMetadata)
    again = core.conflict(in_recovery("a", "d", "e"), 2)
    assert again == [Fence("a"), Fence("d"), Fence("e")]
    return core


def test_a_fence_of_before_does_not_cover_the_new_ensemble() -> None:
    core = restarted()
    assert core.fenced("a", -1) == []
    assert core.fenced("c", -1) == [], "c stood where e stands now; e is not fenced"
    assert core.fence_failed("b", Unauthorized("late")) == [], "and b's word ends nothing"
    assert Read(0, ("a", "d", "e")) in core.fenced("d", -1)


def test_a_denial_counts_only_from_who_was_asked() -> None:
    core = restarted()
    core.fenced("a", -1)
    core.fenced("d", -1)
    core.entry_absent(0, "a")
    assert core.entry_absent(0, "c") == [], "c is not in the write set any more"
    core.entry_unknown(0, "b", "late")
    assert EndFound(-1) in core.entry_absent(0, "e")


# The meaning of a bookie's answer to a recovery: a denial, a fence, or nothing.
NOTHING = (BookieIOError("disk"), BookieUnavailable("a", "down"), DigestMismatch("damaged"))


class Core:
    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def told(*_: object) -> list[Any]:
            self.told.append(name)
            return []

        return told


async def recovery_told(answer: object) -> tuple[Recovery, Core]:
    """Bookie a is ours, b is foreign."""
    bookies = SimpleNamespace(get=lambda name, _: SimpleNamespace(is_ours=name == "a"))
    client: Any = SimpleNamespace(options=LedgerOptions(), bookies=bookies)
    recovery, core = Recovery(client, 7, b""), Core()
    patched: Any = recovery
    patched._core = core
    patched._ask = lambda bookie_id, entry_id, done: done(answer)
    return recovery, core


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        ((5, 4), "fenced"),
        (NoSuchEntry("none"), "fenced"),
        (NoSuchLedger("none"), "fenced"),
        (UnknownState("in limbo"), "fence_unknown"),
        (Unauthorized("another key"), "squatted"),
        *((error, "fence_failed") for error in NOTHING),
    ],
)
async def test_what_the_answer_to_a_fence_means(answer: object, means: str) -> None:
    """A bookie in limbo is fenced and takes write-backs; a failed bookie is replaced."""
    recovery, core = await recovery_told(answer)
    async with asyncio.timeout(10):
        await recovery._fence("a")
    assert core.told == [means]


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        ((b"entry", 5), "entry_found"),
        (NoSuchEntry("none"), "entry_absent"),
        (NoSuchLedger("none"), "entry_absent"),
        (Unauthorized("another key"), "entry_absent"),
        *((error, "entry_unknown") for error in (*NOTHING, UnknownState("in limbo"))),
    ],
)
async def test_what_the_answer_to_a_read_means(
    answer: tuple[bytes, int] | OctavoError, means: str
) -> None:
    recovery, core = await recovery_told(answer)
    recovery._read(3, "a")
    assert core.told == [means]


async def test_of_a_foreign_bookie_a_wrong_key_says_nothing() -> None:
    """Our bookie says so when that key is durable; a foreign one's answer proves nothing."""
    recovery, core = await recovery_told(Unauthorized("another key"))
    async with asyncio.timeout(10):
        await recovery._fence("b")
    recovery._read(3, "b")
    assert core.told == ["fence_failed", "entry_unknown"]


async def test_after_its_end_it_listens_to_nobody() -> None:
    """A listener that is added after the end would stay for ever."""
    listened: list[object] = []
    bookie = Mock(listen=listened.append, unlisten=listened.remove)
    client: Any = SimpleNamespace(
        options=LedgerOptions(), bookies=SimpleNamespace(get=lambda *_: bookie)
    )
    recovery = Recovery(client, 7, b"")
    patched: Any = recovery
    patched._with = lambda *_: None
    recovery.add_refused("a", Code.TOO_MANY_REQUESTS, 0, 0)
    recovery._stop()
    await asyncio.sleep(2 * _BUSY_PAUSE_S)
    recovery._perform([WriteBack(0, "a", 0, 0)])
    assert not listened
