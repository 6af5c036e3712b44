"""The writer's state machine, scenario by scenario (numbers: reference, §3.2)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.ledger.actions import (
    ChangeDelayed,
    ChooseReplacements,
    Closed,
    Confirmed,
    Ended,
    EnsembleChanged,
    Send,
    Stalled,
    WriteMetadata,
    Written,
)
from octavo.ledger.actions import WriterAction as Action
from octavo.ledger.errors import BookieUnavailable, LedgerFenced, NotEnoughBookies
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.bookie_channel import BookieChannel
from octavo.ledger.write.ensemble_writer import EnsembleWriter, WriterEvent
from octavo.ledger.write.pending import Pending
from octavo.ledger.write.writer_state import Force, State, WriterState
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.codes import Code, OctavoError, Unauthorized
from tests.support.cluster import Cluster, until
from tests.support.cluster import cluster as cluster
from tests.support.ledger_world import new_ledger


def down(bookie_id: str) -> BookieUnavailable:
    return BookieUnavailable(bookie_id, "connection lost")


def ledger(e: int = 3, qw: int = 3, qa: int = 2) -> LedgerMetadata:
    bookies = tuple("abcdefgh"[:e])
    return LedgerMetadata(7, e, qw, qa, (Fragment(0, bookies),))


def writing(e: int = 3, qw: int = 3, qa: int = 2) -> WriterState:
    return WriterState(ledger(e, qw, qa), 0)


def only(actions: list[Action], kind: type) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


def confirmed(actions: list[Action]) -> int | None:
    found = only(actions, Confirmed)
    return found[-1].last_entry if found else None  # type: ignore[union-attr]


def record(actions: list[Action]) -> LedgerMetadata:
    (action,) = only(actions, WriteMetadata)
    assert isinstance(action, WriteMetadata)
    return action.metadata


# ---------------------------------------------------------------------- in order


def test_confirmed_by_an_ack_quorum_and_in_order() -> None:
    """P13."""
    core = writing()
    core.push(10)
    assert confirmed(core.acked("a", 0, 9)) is None
    assert confirmed(core.acked("b", 0, 4)) == 4
    assert confirmed(core.acked("c", 3, 9)) is None, "a gap at c: its acks wait"
    assert confirmed(core.acked("c", 0, 2)) == 9
    assert core.lac == 9


def test_acks_of_a_stranger_or_of_entries_never_sent_do_not_count() -> None:
    """P15."""
    core = writing()
    core.push(2)
    core.acked("a", 0, 1)
    assert core.acked("stranger", 0, 1) == []
    assert only(core.acked("b", 0, 5), ChooseReplacements), "b acked what it never got"
    assert core.lac == -1


# ---------------------------------------------------------------------- ensemble change


def test_1_many_failures_of_one_bookie_make_one_change() -> None:
    """testChangeTriggeredOneTimeForOneFailure."""
    core = writing()
    core.push(5)
    assert core.failed("a", down("a")) == [ChooseReplacements((0,), ("a", "b", "c"))]
    for _ in range(4):
        assert core.failed("a", down("a")) == []
    wanted = core.chosen({0: "d"})
    assert record(wanted).fragments == (Fragment(0, ("d", "b", "c")),)
    assert core.failed("a", down("a")) == []
    assert core.written(1) == [
        EnsembleChanged(0, ("a", "b", "c"), ("d", "b", "c")),
        Send(0, "d", 0),
    ]
    assert core.failed("a", down("a")) == [], "it is no member any more"


def test_2_a_second_failure_while_the_first_is_being_handled() -> None:
    """testSecondFailureOccursWhileFirstBeingHandled: no add is lost, no ack early."""
    core = writing()
    core.push(3)
    core.acked("c", 0, 2)
    core.failed("a", down("a"))
    core.chosen({0: "d"})
    assert core.failed("b", down("b")) == []
    actions = core.written(1)
    assert only(actions, ChooseReplacements) == [ChooseReplacements((1,), ("d", "b", "c"))]
    assert confirmed(core.acked("d", 0, 2)) is None, "P14: still unresolved"
    core.chosen({1: "e"})
    actions = core.written(2)
    assert core.metadata.fragments == (Fragment(0, ("d", "e", "c")),)
    assert confirmed(actions) == 2


def test_2_failures_before_the_choice_are_replaced_together() -> None:
    core = writing()
    core.push(1)
    core.failed("a", down("a"))
    core.failed("b", down("b"))
    again = core.chosen({0: "d"})
    assert again == [ChooseReplacements((0, 1), ("a", "b", "c"))]
    assert record(core.chosen({0: "d", 1: "e"})).fragments[0].bookies == ("d", "e", "c")


def test_3_nobody_to_replace_with_ends_the_writer_at_the_last_confirmed() -> None:
    """The ledger can then be closed; its record shows the last good ensemble."""
    core = writing()
    core.push(4)
    core.acked("a", 0, 3)
    core.acked("b", 0, 1)
    core.failed("b", down("b"))
    assert core.chosen({}) == [ChangeDelayed(("b",))]
    core.failed("c", down("c"))
    assert core.chosen({}) == [Stalled(("b", "c"))]
    (ended,) = core.give_up()
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, NotEnoughBookies)
    closing = record(core.close(200))
    assert (closing.state, closing.last_entry, closing.length) == (LedgerState.CLOSED, 1, 200)
    assert closing.fragments == ledger().fragments
    assert core.written(1) == [Closed(closing)]


@pytest.mark.parametrize("published", [False, True])
def test_4_close_wins_over_a_change_under_way(published: bool) -> None:
    """testClientClosesWhileFailureHandlerInProgress."""
    core = writing()
    core.push(2)
    core.failed("a", down("a"))
    if not published:
        closing = core.close(0)
        assert core.chosen({0: "d"}) == [], "the change is dropped"
        assert record(closing).fragments == ledger().fragments
    else:
        core.chosen({0: "d"})
        assert core.close(0) == [], "the compare-and-set under way is waited for"
        closing = core.written(1)
        assert record(closing).fragments[0].bookies == ("d", "b", "c")
    assert record(closing).last_entry == -1
    assert only(core.written(2), Closed)
    assert core.acked("b", 0, 1) == []


@pytest.mark.parametrize("state", [LedgerState.CLOSED, LedgerState.IN_RECOVERY])
def test_5_fenced_by_the_record_during_a_change(state: LedgerState) -> None:
    """testMetadataSetToClosed/InRecoveryDuringFailureHandler."""
    core = writing()
    core.push(2)
    core.acked("b", 0, 1)
    core.acked("c", 0, 0)
    core.failed("a", down("a"))
    core.chosen({0: "d"})
    (ended,) = core.conflict(replace(core.metadata, state=state), 1)
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, LedgerFenced)
    assert core.acked("c", 1, 1) == [], "P19"
    assert core.close(0) == [], "whoever fenced it closes it"


def test_6_somebody_repaired_an_older_fragment_meanwhile() -> None:
    """testOldEnsembleChangedDuringFailureHandler."""
    start = replace(
        ledger(), fragments=(Fragment(0, ("x", "b", "c")), Fragment(5, ("a", "b", "c")))
    )
    core = WriterState(start, 3, last_add_confirmed=9)
    core.push(1)
    core.failed("a", down("a"))
    core.chosen({0: "d"})
    repaired = replace(start, fragments=(Fragment(0, ("y", "b", "c")), start.fragments[1]))
    again = core.conflict(repaired, 4)
    assert again == [
        WriteMetadata(
            replace(repaired, fragments=(*repaired.fragments, Fragment(10, ("d", "b", "c")))), 4
        )
    ]
    assert only(core.written(5), EnsembleChanged)


def test_7_nothing_is_acked_while_a_change_is_unresolved() -> None:
    """P14."""
    core = writing()
    core.push(3)
    core.failed("a", down("a"))
    assert core.acked("b", 0, 2) == []
    assert core.acked("c", 0, 2) == []
    core.chosen({0: "d"})
    assert core.acked("d", 0, 2) == [], "not even published yet"
    assert confirmed(core.written(1)) == 2, "b and c suffice"


def test_8_entries_without_the_failed_bookie_still_complete_after_the_change() -> None:
    """testHandleFailureBookieNotInWriteSet."""
    core = writing(3, 2, 2)
    core.push(2)  # entry 0 on a, b; entry 1 on b, c
    core.failed("c", down("c"))
    assert core.acked("a", 0, 0) == []
    assert core.acked("b", 0, 1) == []
    core.chosen({2: "d"})
    assert confirmed(core.written(1)) == 0
    assert confirmed(core.acked("d", 1, 1)) == 1


def test_9_acks_of_the_replaced_bookie_are_forgotten_for_every_entry() -> None:
    """BookKeeper #4097: entry 0 lacks the replaced position, entry 1 has its old ack."""
    core = writing(3, 2, 2)
    core.push(2)
    core.acked("b", 0, 1)
    core.acked("c", 1, 1)  # entry 1 is complete, but entry 0 is not
    core.failed("c", down("c"))
    core.chosen({2: "d"})
    assert confirmed(core.written(1)) is None
    assert confirmed(core.acked("a", 0, 0)) == 0, "entry 1 must wait for d, which has not stored it"
    assert core.acked("c", 1, 1) == [], "P15: c is no member"
    assert confirmed(core.acked("d", 1, 1)) == 1


def test_10_without_a_spare_the_change_is_delayed_while_the_ack_quorum_holds() -> None:
    """TestDelayEnsembleChange."""
    core = writing()
    core.push(2)
    core.failed("a", down("a"))
    assert core.chosen({}) == [ChangeDelayed(("a",))]
    assert core.live == [1, 2]
    core.acked("b", 0, 1)
    assert confirmed(core.acked("c", 0, 1)) == 1
    core.push(1)
    assert core.spares_changed() == [ChooseReplacements((0,), ("a", "b", "c"))]
    assert record(core.chosen({0: "d"})).fragments[-1] == Fragment(2, ("d", "b", "c"))
    assert only(core.written(1), Send) == [Send(0, "d", 2)]


def test_10_a_bookie_that_comes_back_gets_what_is_unconfirmed() -> None:
    core = writing()
    core.push(4)
    core.acked("a", 0, 0)
    core.failed("a", down("a"))
    core.chosen({})
    core.acked("b", 0, 2)
    core.acked("c", 0, 2)
    assert core.returned("a") == [Send(0, "a", 3)], "entries 1 and 2 stay without it"
    core.acked("b", 3, 3)
    assert core.lac == 2
    assert confirmed(core.acked("a", 3, 3)) == 3


def test_10_a_stalled_writer_goes_on_when_a_bookie_returns_or_a_spare_comes() -> None:
    core = writing()
    core.push(2)
    core.acked("a", 0, 1)
    for bookie in ("b", "c"):
        core.failed(bookie, down(bookie))
        core.chosen({})
    assert core.state is State.STALLED
    core.acked("b", 0, 1)
    assert core.lac == -1, "P14"
    assert core.returned("b") == [Send(1, "b", 2), Confirmed(1)]
    assert core.give_up() == []
    core.failed("b", down("b"))
    assert only(core.chosen({1: "d"}), WriteMetadata)
    core.written(1)
    assert core.chosen({}) == [ChangeDelayed(("c",))]


def test_11_a_late_failure_changes_the_ensemble_too() -> None:
    """P18: the entry was confirmed long ago."""
    core = writing()
    core.push(1)
    core.acked("a", 0, 0)
    core.acked("b", 0, 0)
    assert core.failed("c", down("c")) == [ChooseReplacements((2,), ("a", "b", "c"))]
    assert record(core.chosen({2: "d"})).fragments == (
        Fragment(0, ("a", "b", "c")),
        Fragment(1, ("a", "b", "d")),
    )


def test_the_newest_fragment_is_rewritten_when_nothing_of_it_is_confirmed() -> None:
    """EC-2, P10, P17."""
    core = writing()
    core.push(3)
    core.acked("a", 0, 0)
    core.acked("b", 0, 0)
    for version, (failing, spare) in enumerate((("a", "d"), ("d", "e")), 1):
        core.failed(failing, down(failing))
        core.chosen({0: spare})
        core.written(version)
    assert core.metadata.fragments == (Fragment(0, ("a", "b", "c")), Fragment(1, ("e", "b", "c")))


def test_a_bookie_may_be_replaced_and_chosen_again() -> None:
    """BookKeeper #4261: there the writer was stuck."""
    core = writing()
    core.push(1)
    for version, (failing, spare) in enumerate((("a", "d"), ("d", "a")), 1):
        core.failed(failing, down(failing))
        core.chosen({0: spare})
        core.written(version)
    assert core.metadata.fragments == (Fragment(0, ("a", "b", "c")),)
    core.acked("b", 0, 0)
    assert confirmed(core.acked("a", 0, 0)) == 0


def test_a_lost_reply_is_recognised_by_what_stands_there() -> None:
    core = writing()
    core.push(1)
    core.failed("a", down("a"))
    wanted = record(core.chosen({0: "d"}))
    assert only(core.conflict(wanted, 1), EnsembleChanged)
    assert core.version == 1


def test_another_writer_of_the_newest_fragment_fences_this_one() -> None:
    core = writing()
    core.failed("a", down("a"))
    core.chosen({0: "d"})
    other = replace(core.metadata, fragments=(Fragment(0, ("x", "b", "c")),))
    (ended,) = core.conflict(other, 1)
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, LedgerFenced)


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("error", [LedgerFenced("fenced"), Unauthorized("wrong key")])
def test_one_fenced_answer_ends_the_writer(error: OctavoError) -> None:
    """Also while a change is in progress, whose outcome then does not matter."""
    for changing in (False, True):
        core = writing()
        core.push(3)
        core.acked("a", 0, 2)
        if changing:
            core.failed("c", down("c"))
            core.chosen({2: "d"})
        assert core.refused("b", error) == [Ended(error)]
        assert core.fenced
        assert core.written(1) == []
        assert core.acked("b", 0, 2) == []
        assert core.refused("b", error) == []


def test_19_close_at_the_last_confirmed() -> None:
    """CL-1: pending entries are not part of the ledger, nor of its length."""
    core = writing()
    core.push(5)
    core.acked("a", 0, 4)
    core.acked("b", 0, 2)
    closing = core.close(300)
    assert record(closing) == replace(ledger(), state=LedgerState.CLOSED, last_entry=2, length=300)
    assert core.acked("b", 3, 4) == []
    assert core.failed("a", down("a")) == []
    assert core.written(1) == [Closed(record(closing))]


def test_19_losing_to_a_closer_with_the_same_end_is_success() -> None:
    """CL-2."""
    core = writing()
    closing = record(core.close(0))
    assert core.conflict(closing, 5) == [Closed(closing)]


@pytest.mark.parametrize(
    "found",
    [
        {"state": LedgerState.CLOSED, "last_entry": 4, "length": 9},
        {"state": LedgerState.IN_RECOVERY},
    ],
)
def test_19_losing_to_another_end_or_a_recovery_is_an_error(found: dict[str, object]) -> None:
    """CL-2, CL-3: stricter than BookKeeper, which overwrites a recovery's mark."""
    core = writing()
    core.close(0)
    (ended,) = core.conflict(replace(core.metadata, **found), 5)  # type: ignore[arg-type]
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, LedgerFenced)
    assert core.fenced


def test_19_close_merges_a_repaired_older_fragment() -> None:
    core = writing()
    core.close(0)
    current = replace(core.metadata, custom={"mark": b"1"})
    (again,) = core.conflict(current, 5)
    assert isinstance(again, WriteMetadata)
    assert again.version == 5
    assert again.metadata.custom == {"mark": b"1"}
    assert again.metadata.state is LedgerState.CLOSED


def test_closing_after_a_change_whose_answer_never_came() -> None:
    """The fragment may be in the record or not: the close accepts both, and nothing else."""
    for landed in (False, True):
        core = writing()
        core.push(1)
        core.failed("a", down("a"))
        wanted = record(core.chosen({0: "d"}))
        assert only(core.metadata_lost(down("store")), Ended)
        core.close(0)
        current = wanted if landed else replace(core.metadata, custom={"x": b""})
        (again,) = core.conflict(current, 1)
        assert isinstance(again, WriteMetadata)
        assert again.metadata.fragments == current.fragments


# When a third bookie came back, nothing was owed any more, but held adds were only released when an
# add was answered: `drain` waited for ever.


class _Owner:
    def __init__(self) -> None:
        self.last_confirmed = -1
        self.held_bytes: Callable[[], int] = lambda: -1
        self.held_when_released = -1

    def confirmed(self, last_entry: int) -> None:
        self.last_confirmed = last_entry

    def written(self, last_entry: int) -> None: ...

    def released(self) -> None:
        self.held_when_released = self.held_bytes()

    def tell(self, event: WriterEvent) -> None: ...


def _bookie(bookie_id: str) -> Any:
    def nothing(_: object) -> None: ...

    return SimpleNamespace(
        bookie_id=bookie_id, connection=None, is_up=True, listen=nothing, unlisten=nothing
    )


def _client() -> Any:
    bookies = {name: _bookie(name) for name in "abc"}
    return SimpleNamespace(
        options=LedgerOptions(),
        bookies=SimpleNamespace(
            get=lambda name, _class: bookies[name],
            suspect=lambda _name: None,
            probe=lambda: None,
            on_change=lambda _listener: lambda: None,
        ),
        replacements=lambda _wish, _metadata: {},
        keep_ticking=lambda _ensemble_writer: None,
        stop_ticking=lambda _ensemble_writer: None,
    )


@pytest.mark.parametrize("found_by", ["connection", "retry"])
async def test_what_a_return_confirms_is_let_go(found_by: str) -> None:
    owner = _Owner()
    replication = EnsembleWriter(_client(), new_ledger(3, 2, 2), 0, owner)
    owner.held_bytes = lambda: replication.pending.held_bytes
    replication.push([b"x" * 100])
    assert replication.pending.held_bytes
    replication.bookie_down("c", BookieUnavailable("c", "gone"))
    assert replication.core.state is State.STALLED
    replication.added("a", 0, 0)
    replication.added("b", 0, 0)
    assert owner.last_confirmed == -1, "P14: the change is unresolved"
    if found_by == "connection":
        replication.bookie_up("c")
    else:
        replication._retry_failed()
    replication.stop()
    assert owner.last_confirmed == 0
    assert owner.held_when_released == 0


async def test_nothing_is_held_for_a_bookie_that_is_down() -> None:
    """When it comes back, it counts again from there."""
    owner = _Owner()
    replication = EnsembleWriter(_client(), new_ledger(3, 3, 2), 0, owner)
    replication.bookie_down("c", BookieUnavailable("c", "gone"))
    for entry_id in range(3):
        replication.push([b"x" * 100])
        replication.added("a", entry_id, entry_id)
        assert replication.pending.held_bytes
        replication.added("b", entry_id, entry_id)
        assert owner.last_confirmed == entry_id
        assert replication.pending.held_bytes == 0
    replication.stop()


class _Connection:
    writable = True

    def __init__(self) -> None:
        self.sent = 0

    def attach(self, ledger_id: int, sink: object) -> None: ...

    def detach(self, ledger_id: int, sink: object) -> None: ...

    def send_adds(self, frames: object, size: int) -> None:
        self.sent += size


class _Bookie:
    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.connection: _Connection | None = _Connection()


async def test_the_last_ack_of_a_window_sends_what_waited_for_it() -> None:
    """The writer looked for room before it took the ack of a busy bookie, found none, and no
    other ack came."""
    client = _client()
    client.options = LedgerOptions(busy_backoff_ms_min=1, busy_backoff_ms_max=1)
    connection = client.bookies.get("a", None).connection = _Connection()
    replication = EnsembleWriter(client, new_ledger(3, 3, 2), 0, _Owner())
    replication.push([b"x" * 100] * 40)
    replication.add_refused("a", Code.TOO_MANY_REQUESTS, 0, 39)
    replication.push([b"x" * 100] * 40)  # they wait for the pause, then for the window
    of_forty = connection.sent
    await until(lambda: connection.sent >= 2 * of_forty, "the pause is over")
    assert connection.sent == 2 * of_forty, "the window has no room for more"
    replication.added("a", 0, 39)
    (channel,) = (one for one in replication._channels if one.bookie.bookie_id == "a")
    assert channel.waits_in_vain() == ""
    assert connection.sent - 2 * of_forty == of_forty * 30 // 40, "as many as the window holds: 30"
    replication.stop()


def test_a_bookie_that_failed_meanwhile_is_sent_nothing() -> None:
    """The core does nothing about a second failure until the first change is done, so the
    channel did not hear of it. When the bookie came back, sending released entries failed an
    assertion."""
    core = WriterState(new_ledger(3, 3, 2), 0)
    first, second, third = core.ensemble
    pending = Pending(core.metadata, core.quorum)
    sink: Any = None
    bookie: Any = _Bookie(second)
    channel = BookieChannel(sink, core, pending, 1, bookie, LedgerOptions())
    channel.attach(0.0)
    for _ in range(3):
        pending.encode([b"x"], 0, core.lac)
        core.push(1)
    core.acked(first, 0, 1)
    core.acked(third, 0, 1)
    assert core.lac == 1

    [asked] = core.failed(third, BookieUnavailable(third, "the first failure"))
    assert isinstance(asked, ChooseReplacements)
    [change] = core.chosen({2: "spare"})
    assert isinstance(change, WriteMetadata)
    assert core.state is State.PUBLISHING
    assert core.failed(second, BookieUnavailable(second, "the second")) == []
    pending.release(core.lac)  # no connected bookie misses it

    bookie.connection = _Connection()  # it comes back
    channel.attach(1.0)
    assert core.returned(second) == []
    channel.pump()
    assert bookie.connection.sent == 0
    assert not channel.owes()


# With E > Qw, entries that a bookie does not hold counted as owed by it: `drain` could wait for
# ever, and after an idle hour its first add was overdue at once.


async def test_drain_ends_when_every_holder_has_acked(cluster: Cluster) -> None:
    client = await cluster.client(pending_bytes_max=1)
    writer = await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
    async with asyncio.timeout(10):
        for entry_id in range(7):
            assert await writer.append(b"x" * 100) == entry_id
        await writer.drain()
        assert writer.pending_bytes == 0


class _StripedBookie:
    """A bookie without a connection: nothing can be sent to it, nor acked by it."""

    bookie_id = "a"
    connection = None


def test_a_bookie_is_not_overdue_for_the_time_in_which_it_was_owed_nothing() -> None:
    core = WriterState(new_ledger(3, 2, 2), 0)
    pending = Pending(core.metadata, core.quorum)
    options = LedgerOptions()
    sink: Any = None
    bookie: Any = _StripedBookie()
    channel = BookieChannel(sink, core, pending, 0, bookie, options)
    channel.attach(0.0)

    def push(now: float) -> None:
        chunk, _ = pending.encode([b"x"], 0, core.lac)
        core.push(1)
        channel.push(chunk, None, now)

    push(0.0)
    push(0.0)
    for position, first, last in ((0, 0, 0), (1, 0, 1), (2, 1, 1)):
        core.acked(core.ensemble[position], first, last)
    assert core.lac == 1
    assert not channel.owes()  # position 0 does not hold entry 1
    push(3_600.0)
    assert channel.owes()
    assert not channel.overdue(3_600.1)
    assert channel.overdue(3_600.0 + options.add_timeout_s)


# The writer's state machine with acks before syncs: what is answered, what is confirmed.
def deferring(e: int = 3, qw: int = 3, qa: int = 2, *, deferred: bool = True) -> WriterState:
    metadata = LedgerMetadata(7, e, qw, qa, (Fragment(0, tuple("abcdefgh"[:e])),))
    return WriterState(metadata, 0, deferred=deferred)


def forced(core: WriterState, bookie_id: str, last: int) -> list[Action]:
    """Ask the bookie for a force; it answers that it has everything up to `last`."""
    if bookie_id not in core.ensemble:
        return core.forced(Force(bookie_id, last, 0))
    return core.forced(core.to_force(core.ensemble.index(bookie_id))._replace(last_entry=last))


def told(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, Written | Confirmed)]


def test_acks_answer_and_forces_confirm() -> None:
    core = deferring()
    core.push(5)
    assert core.acked("a", 0, 4) == []
    assert core.acked("b", 0, 2) == [Written(2)]
    assert (core.written_to, core.lac) == (2, -1)
    assert forced(core, "a", 4) == []
    assert forced(core, "b", 1) == [Confirmed(1)]
    assert core.acked("c", 0, 4) == [Written(4)]
    assert forced(core, "c", 4) == [Confirmed(4)]
    assert core.written_to == core.lac == 4


def test_who_failed_is_believed_nothing_that_was_not_forced() -> None:
    core = deferring()
    core.push(10)
    for bookie in "ab":
        core.acked(bookie, 0, 9)
        forced(core, bookie, 3)
    assert core.lac == 3
    core.failed("a", down("a"))
    core.chosen({})
    assert core.returned("a") == [Send(0, "a", 4)]
    assert core.received.acked_to[0] == 3
    assert forced(core, "b", 9) == []
    assert core.lac == 3, "it may have lost what is above"
    core.acked("a", 4, 9)
    assert told(forced(core, "a", 9)) == [Confirmed(9)]


def test_who_replaces_it_gets_all_that_was_not_forced() -> None:
    core = deferring()
    core.push(10)
    for bookie in "ab":
        core.acked(bookie, 0, 9)
        forced(core, bookie, 3)
    core.failed("a", down("a"))
    core.chosen({0: "x"})
    actions = core.written(1)
    assert [action for action in actions if isinstance(action, EnsembleChanged | Send)] == [
        EnsembleChanged(4, ("a", "b", "c"), ("x", "b", "c")),
        Send(0, "x", 4),
    ]
    assert forced(core, "a", 3) == [], "no member any more"
    forced(core, "b", 9)
    assert core.lac == 3
    core.acked("x", 4, 9)
    assert forced(core, "x", 9) == [Confirmed(9)]


def test_it_closes_at_what_is_confirmed() -> None:
    core = deferring()
    core.push(4)
    for bookie in "abc":
        core.acked(bookie, 0, 3)
    forced(core, "a", 1)
    forced(core, "b", 1)
    (write,) = core.close(2)
    assert core.state is State.CLOSING
    assert write.metadata.last_entry == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2), (4, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("seed", range(20))
def test_against_a_count_of_what_is_durable(quorums: tuple[int, int, int], seed: int) -> None:
    """Bookies come, go and lose unsynced entries: a confirmed entry is on Qa of them."""
    rng = random.Random(seed)
    core = deferring(*quorums)
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
                core.forced(core.to_force(position))
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


def test_an_answer_to_a_force_that_was_asked_before_a_failure_says_nothing() -> None:
    """The bookie refuses an add while its slow force runs; the force's answer then broke the
    connection."""
    core = deferring()
    core.push(10)
    for bookie in "ab":
        core.acked(bookie, 0, 9)
    slow, other = core.to_force(0), core.to_force(1)
    core.push(1)
    core.failed("a", down("a"))
    core.chosen({})
    assert core.forced(slow) == []
    assert core.acks.acked_to[0] == -1, "what it failed with is asked for anew"
    core.forced(other)
    assert core.returned("a") == [Send(0, "a", 0)]
    core.acked("a", 0, 10)
    assert core.forced(slow) == [], "what it has acked since is newer than this question"
    assert core.lac == -1
    assert told(core.forced(core.to_force(0))) == [Confirmed(9)]


def test_an_answer_to_a_force_of_a_former_membership_says_nothing() -> None:
    """The bookie was replaced and chosen again, and needs the entries that it missed meanwhile."""
    core = deferring()
    core.push(4)
    for bookie in "ab":
        core.acked(bookie, 0, 3)
    old = core.to_force(0)
    core.failed("a", down("a"))
    core.chosen({0: "x"})
    core.written(1)
    core.failed("x", down("x"))
    core.chosen({0: "a"})
    core.written(2)
    core.acked("a", 0, 1)
    assert core.forced(old) == []
    assert core.acks.acked_to[0] == -1


@dataclass
class Server:
    """A bookie with its requests in flight and its progress. Only `crash` loses anything."""

    name: str
    volatile: set[int] = field(default_factory=set)
    durable: set[int] = field(default_factory=set)
    adds: list[tuple[int, int]] = field(default_factory=list)
    forces: list[Force] = field(default_factory=list)

    def crash(self) -> None:
        self.volatile.clear()
        self.adds.clear()
        self.forces.clear()


def send(core: WriterState, server: Server, position: int, first: int, last: int) -> None:
    for entry_id in range(first, last + 1):
        if core.quorum.holds(position, entry_id):
            server.volatile.add(entry_id)
            server.adds.append((entry_id, entry_id))


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3), (5, 3, 2), (4, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("deferred", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_against_bookies_that_are_down_read_only_and_slow(
    quorums: tuple[int, int, int], seed: int, deferred: bool
) -> None:
    """Any answer comes at any later time: after the bookie failed, was replaced, or came back."""
    rng = random.Random(seed)
    core = deferring(*quorums, deferred=deferred)
    quorum = core.quorum
    servers = {name: Server(name) for name in "abcdefgh"[: quorums[0] + 2]}
    published = 0

    def perform(actions: list[Action]) -> None:
        nonlocal published
        for action in actions:
            if isinstance(action, ChooseReplacements):
                spares = [name for name in servers if name not in action.ensemble]
                rng.shuffle(spares)
                few = rng.randrange(len(action.positions) + 1)
                perform(core.chosen(dict(zip(action.positions[:few], spares, strict=False))))
            elif isinstance(action, WriteMetadata):
                published += 1
                perform(core.written(published))
            elif isinstance(action, Send):
                bookie = servers[action.bookie_id]
                send(core, bookie, action.position, action.first_entry, core.lap)

    for _ in range(400):
        position = rng.randrange(quorums[0])
        name = core.ensemble[position]
        server = servers[rng.choice((name, *servers))]  # also a former member
        match rng.choice(
            ("push", "ack", "ack", "ask", "ask", "answer", "answer", "refuse", "crash", "return")
        ):
            case "push" if core.lap < 80 and core.state is State.OPEN:
                first = core.lap + 1
                core.push(rng.randint(1, 4))
                for p in core.live:
                    send(core, servers[core.ensemble[p]], p, first, core.lap)
            case "ack" if server.adds:
                if not deferred:  # each add was synced before its ack
                    server.durable |= server.volatile
                perform(core.acked(server.name, *server.adds.pop(0)))
            case "ask" if deferred:  # also when it is down: its answer may be late
                servers[name].forces.append(core.to_force(position))
            case "answer" if server.forces:
                server.durable |= server.volatile
                perform(core.forced(server.forces.pop(0)))
            case "refuse":  # it has lost nothing, and still answers
                perform(core.failed(name, down(name)))
            case "crash":
                servers[name].crash()
                perform(core.failed(name, down(name)))
            case "return":
                perform(core.returned(name))
        assert core.lac <= core.written_to <= core.lap
        for entry_id in range(core.lac + 1):
            fragment = core.metadata.fragment_of(entry_id)
            holders = [fragment.bookies[p] for p in quorum.write_set(entry_id)]
            count = sum(entry_id in servers[holder].durable for holder in holders)
            assert count >= quorum.ack_quorum, (entry_id, core.lac)
