"""All models by name: M1 to M6 of a ledger's protocol, M7 of a partition's chain of ledgers, M8 of
claims. Each has planted bugs that it must find."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from octavo.bookie.adds import AddBatch
from octavo.bookie.ledgers import rules as ledger_rules
from octavo.bookie.ledgers.state import LedgerState as BookieLedgerState
from octavo.broker.cluster import ownership_states
from octavo.broker.cluster.ownership_states import Event, Route, route
from octavo.broker.cluster.ownership_states import State as ClaimState
from octavo.broker.log import record as records
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.opening import PartitionOpener
from octavo.broker.partition.publisher import OpenSegment, Publisher
from octavo.ledger.actions import Confirmed, Done, EndFound, RecoveryAction, WriterAction
from octavo.ledger.quorum import Acks, Quorum
from octavo.ledger.recover import recovery
from octavo.ledger.recover.recovery_state import RecoveryState, State
from octavo.ledger.write.writer_state import WriterState
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.store import VersionConflict
from octavo.metadata.topics import PartitionRecord
from octavo.protocol.codes import Code
from octavo.protocol.frames import Flag
from tests.model import claim_nodes
from tests.model.chain_nodes import Broker, Ledgers, RecordStore, all_served
from tests.model.chain_nodes import check as check_chain
from tests.model.claim_nodes import Broker as ClaimBroker
from tests.model.claim_nodes import Record
from tests.model.claim_nodes import all_served as all_claims_served
from tests.model.claim_nodes import check as check_claims
from tests.model.explorer import Defect, Model
from tests.model.ledger_nodes import (
    RECORD,
    Bookie,
    JournaledBookie,
    Recoverer,
    Store,
    Writer,
    check,
    new_record,
)
from tests.model.world import Nodes, World


def is_closed(nodes: Nodes) -> bool:
    recoverers = [node for node in nodes.values() if isinstance(node, Recoverer)]
    closed = nodes[RECORD].value.state is LedgerState.CLOSED
    return closed and all(node.over() for node in recoverers)


def ledger_world(
    shape: tuple[int, int, int],
    bookies: str,
    *,
    recoverers: int = 1,
    entries: int = 1,
    in_flight: int = 1,
    closes: bool = False,
    faults: int = 0,
    loses: bool | None = None,
    crashes: bool = False,
    alike: Sequence[Sequence[str]] = (),
    bookie: type[Bookie] = Bookie,
) -> World:
    """`faults`: how many answers may be missed (`loses`) or bookies crash (`crashes`), together."""
    record = new_record(shape)
    if loses is None:
        loses = faults > 0
    writer = Writer(
        record, bookies, entries=entries, in_flight=in_flight, closes=closes, loses=loses
    )
    clients = [Recoverer(f"r{number}", bookies, loses=loses) for number in range(recoverers)]
    disks = [bookie(name, crashes=crashes) for name in bookies]
    nodes = [Store(record), writer, *clients, *disks]
    return World(nodes, check, faults=faults, ended=is_closed, alike=alike)


def admit_although_fenced(
    state: BookieLedgerState | None, run: AddBatch, *, read_only: bool
) -> Code:
    return Code.OK


FENCING = Model(
    name="M1",
    about="fencing and recovery: one writer, one recoverer; the writer may close as well",
    bounds="E = Qw = 3, Qa = 2; 1 entry; any delay, order and loss of messages",
    world=lambda: ledger_world((3, 3, 2), "abc", closes=True, alike=["abc"]),
    states=106_512,
    depth=27,
    ci=True,
    defects=(
        Defect(
            "recovery reads do not fence (BookKeeper #2614)",
            "S3: entry 0 was acked",
            depth=16,
            plant=lambda: patch.object(recovery, "_READ_FLAGS", Flag.HIGH_PRIORITY),
        ),
        Defect(
            "one answer is enough, for a fence and for the end",
            "S5: r0 reads on",
            depth=4,
            plant=lambda: patch.object(Quorum, "denials", 1),
        ),
        Defect(
            "a fenced bookie takes the old writer's adds",
            "S3: entry 0 was acked",
            depth=16,
            plant=lambda: patch.object(ledger_rules, "admission", admit_although_fenced),
        ),
    ),
)


def keep_the_acks(self: Acks, position: int, base: int) -> None:
    pass


def confirm_at_any_time(self: WriterState) -> list[WriterAction]:
    """Acks count while a change of the ensemble is unresolved (BookKeeper #1591)."""
    confirmed = self.acks.confirmed(self.lac, self.lap)
    if confirmed == self.lac:
        return []
    self.lac = confirmed
    return [Confirmed(confirmed)]


def acked_at_any_time(
    self: WriterState, bookie_id: str, first: int, last: int
) -> list[WriterAction]:
    if bookie_id not in self.ensemble:
        return []
    self.acks.add(self.ensemble.index(bookie_id), first, last)
    return confirm_at_any_time(self)


_closed_record = RecoveryState._closed_record


def keep_changes_to_oneself(self: RecoveryState) -> LedgerMetadata:
    """The closing record names the former bookies."""
    return replace(_closed_record(self), fragments=self.metadata.fragments)


ENSEMBLE_CHANGE = Model(
    name="M2",
    about="ensemble change: a fourth bookie; one bookie crashes for good, or one connection breaks",
    bounds="E = Qw = 3, Qa = 2; 4 bookies; 1 entry; 1 fault",
    world=lambda: ledger_world(
        (3, 3, 2), "abcd", faults=1, loses=True, crashes=True, alike=["abc"]
    ),
    states=3_961_432,
    depth=34,
    defects=(
        Defect(
            "acks of the replaced bookie count for the new one",
            "S1, P15: entry 0 was acked",
            depth=8,
            plant=lambda: patch.object(Acks, "join", keep_the_acks),
        ),
        Defect(
            "acks count while a change is unresolved (BookKeeper #1591)",
            "writer: stored: P14",
            depth=6,
            plant=lambda: patch.object(WriterState, "acked", acked_at_any_time),
        ),
        Defect(
            "a recovery keeps its ensemble changes to itself",
            "P5: entry 0",
            depth=20,
            plant=lambda: patch.object(RecoveryState, "_closed_record", keep_changes_to_oneself),
            slow=True,
        ),
    ),
)

_conflict = RecoveryState.conflict


def believe_oneself(
    self: RecoveryState, current: LedgerMetadata, version: int
) -> list[RecoveryAction]:
    """The loser of the closing compare-and-set keeps the end that it found."""
    if self.state is State.CLOSING:
        self.state = State.DONE
        return [Done(self._closed_record(), version, adopted=False)]
    return _conflict(self, current, version)


def small(ack_quorum: int = 2) -> World:
    shape = (2, 2, ack_quorum)
    return ledger_world(shape, "ab", recoverers=2, closes=True, alike=["ab", ["r0", "r1"]])


RECOVERERS_DEFECTS = (
    Defect(
        "whoever loses the closing CAS keeps to its own end",
        "S2: to r",
        depth=21,
        plant=lambda: patch.object(RecoveryState, "conflict", believe_oneself),
        world=small,
    ),
    Defect(
        "a fence counts without any answer",
        "S5: ",
        depth=4,
        plant=lambda: patch.object(Quorum, "covers", lambda self, answered: True),
        world=lambda: small(ack_quorum=1),
    ),
)

TWO_RECOVERERS_SMALL = Model(
    name="M3-small",
    about="two recoverers race each other and the writer, which may close as well",
    bounds="E = Qw = Qa = 2; 1 entry",
    world=small,
    states=162_485,
    depth=33,
    ci=True,
    defects=RECOVERERS_DEFECTS,
)

TWO_RECOVERERS = Model(
    name="M3",
    about="two recoverers race each other and the writer",
    bounds="E = Qw = 3, Qa = 2; 1 entry",
    world=lambda: ledger_world((3, 3, 2), "abc", recoverers=2, alike=["abc", ["r0", "r1"]]),
    states=3_000_000,
    exhaustive=False,
    defects=(
        replace(RECOVERERS_DEFECTS[0], slow=True),
        replace(RECOVERERS_DEFECTS[1], world=None),
    ),
)

_start_reading = RecoveryState._start_reading


def end_at_the_lac(self: RecoveryState, start: int) -> list[RecoveryAction]:
    """Take the highest LAC of the fenced bookies for the end, without reading beyond it."""
    _start_reading(self, start)
    self._polls.clear()
    self._end, self._length = start, 10 * (start + 1)
    return [EndFound(start), *self._close_if_complete()]


def skip_gaps(self: Acks, position: int, first: int, last: int) -> None:
    """Count a bookie's ack of an entry for all earlier entries."""
    self.acked_to[position] = max(self.acked_to[position], last)


def pipelined() -> World:
    return ledger_world((3, 3, 2), "abc", entries=2, in_flight=2, alike=["abc"])


ENTRIES_DEFECTS = (
    Defect(
        "the LAC of the fenced bookies is taken for the end",
        "S3: entry",
        depth=12,
        plant=lambda: patch.object(RecoveryState, "_start_reading", end_at_the_lac),
    ),
    Defect(
        "an ack counts for all entries before it",
        "S1, P15: entry 0",
        depth=6,
        plant=lambda: patch.object(Acks, "add", skip_gaps),
        world=pipelined,
    ),
)

TWO_ENTRIES = Model(
    name="M4",
    about="two entries, one after the other: the second carries the LAC of the first",
    bounds="E = Qw = 3, Qa = 2; 2 entries, 1 in flight",
    world=lambda: ledger_world((3, 3, 2), "abc", entries=2, alike=["abc"]),
    states=514_219,
    depth=38,
    defects=ENTRIES_DEFECTS,
)

PIPELINED = Model(
    name="M4-pipelined",
    about="two entries under way at once",
    bounds="E = Qw = 3, Qa = 2; 2 entries, 2 in flight",
    world=pipelined,
    states=3_000_000,
    exhaustive=False,
    defects=(ENTRIES_DEFECTS[1], replace(ENTRIES_DEFECTS[0], world=pipelined)),
)


def count_answers(self: Quorum, answered: Collection[int]) -> bool:
    """E − Qa + 1 answers count, wherever they come from (BookKeeper #2281)."""
    return len(answered) >= self.ensemble_size - self.ack_quorum


def changing() -> World:
    return ledger_world((3, 2, 2), "abcd", entries=2, in_flight=2, faults=1, loses=True)


STRIPING_DEFECTS = (
    Defect(
        "fence answers are counted, not looked at window by window (BookKeeper #2281)",
        "S5: ",
        depth=4,
        plant=lambda: patch.object(Quorum, "covers", count_answers),
    ),
    Defect(
        "acks of the replaced bookie count for the new one (BookKeeper #4097)",
        "S1, P15: entry",
        depth=8,
        plant=lambda: patch.object(Acks, "join", keep_the_acks),
        world=changing,
    ),
)

STRIPING = Model(
    name="M5",
    about="striping: each entry on two of three bookies, both must store it",
    bounds="E = 3, Qw = Qa = 2; 3 entries, 2 in flight",
    world=lambda: ledger_world((3, 2, 2), "abc", entries=3, in_flight=2),
    states=500_374,
    depth=40,
    defects=STRIPING_DEFECTS,
)

ONE_ACK = Model(
    name="M5-Qa1",
    about="striping: each entry on two of three bookies, one ack is enough",
    bounds="E = 3, Qw = 2, Qa = 1; 3 entries, 2 in flight",
    world=lambda: ledger_world((3, 2, 1), "abc", entries=3, in_flight=2),
    states=1_592_710,
    depth=39,
    defects=(
        replace(STRIPING_DEFECTS[0], depth=6),
        Defect(
            "a fenced bookie takes the old writer's adds",
            "S3: entry 0 was acked",
            depth=16,
            plant=lambda: patch.object(ledger_rules, "admission", admit_although_fenced),
        ),
    ),
)

CHANGING = Model(
    name="M5-change",
    about="striping with a spare bookie: ensemble changes that touch some entries only",
    bounds="E = 3, Qw = Qa = 2; 4 bookies; 2 entries in flight; 1 broken connection",
    world=changing,
    states=3_000_000,
    exhaustive=False,
    defects=(
        STRIPING_DEFECTS[1],
        Defect(
            "acks count while a change is unresolved (BookKeeper #1591)",
            "writer: stored: P14",
            depth=6,
            plant=lambda: patch.object(WriterState, "acked", acked_at_any_time),
        ),
    ),
)


class VolatileFence(JournaledBookie):
    journals_fences = False


class HastyAck(JournaledBookie):
    answers_before_sync = True


def small_crash(bookie: type[Bookie] = JournaledBookie) -> World:
    return ledger_world(
        (2, 2, 2), "ab", faults=1, loses=False, crashes=True, alike=["ab"], bookie=bookie
    )


def large(bookie: type[Bookie] = JournaledBookie) -> World:
    return ledger_world(
        (3, 3, 2), "abc", faults=1, loses=False, crashes=True, alike=["abc"], bookie=bookie
    )


CRASH_SMALL = Model(
    name="M6-small",
    about="a bookie crashes and restarts; its journal holds entries and fences",
    bounds="E = Qw = Qa = 2; 1 entry; 1 crash",
    world=small_crash,
    states=748_559,
    depth=38,
    defects=(
        Defect(
            "the fence is kept in memory only",
            "S5: r0 reads on",
            depth=5,
            world=lambda: small_crash(VolatileFence),
        ),
        Defect("an answer before the sync", "S1, P15: ", 5, world=lambda: small_crash(HastyAck)),
    ),
)

CRASH = Model(
    name="M6",
    about="a bookie crashes and restarts; its journal holds entries and fences",
    bounds="E = Qw = 3, Qa = 2; 1 entry; 1 crash",
    world=large,
    states=3_000_000,
    exhaustive=False,
    defects=(
        Defect(
            "the fence is kept in memory only",
            "S5: r0 reads on",
            depth=7,
            world=lambda: large(VolatileFence),
        ),
        Defect("an answer before the sync", "S1, P15: ", 5, world=lambda: large(HastyAck)),
    ),
)


def chain_world(brokers: str, *, messages: int, rolls: bool, faults: int = 0) -> World:
    """Each broker claims once, at any time; `faults`: lost answers of the metadata store."""
    nodes = [Broker(name, messages=messages, rolls=rolls, loses=faults > 0) for name in brokers]
    return World(
        [RecordStore(), Ledgers(), *nodes],
        check_chain,
        faults=faults,
        ended=all_served,
        alike=[brokers],
    )


async def overwrite(
    self: PartitionRecordKeeper, wanted: PartitionRecord
) -> tuple[PartitionRecord, int]:
    while True:
        try:
            return wanted, await self._topics.write_partition(*self._name, wanted, self._version)
        except VersionConflict:
            _, self._version = await self._topics.read_partition(*self._name)


async def look_only(self: PartitionOpener) -> Any:
    """Measure the last ledger without fencing its owner."""
    last = self._record.ledgers.last
    if last is None or last.count is not None:
        return None
    return await self._ledgers.look(last.ledger_id)  # type: ignore[attr-defined]


_switch_to = Publisher.switch_to


def answer_at_once(self: Publisher, segment: OpenSegment) -> None:
    """Answer adds to the new ledger before the record names it."""
    _switch_to(self, segment)
    segment.released = True


OVERWRITES = Defect(
    "the list of ledgers is written whatever its version",
    "record: write: ",
    depth=12,
    plant=lambda: patch.object(PartitionRecordKeeper, "_put", overwrite),
)
LOOKS = Defect(
    "the last ledger is not recovered before the list grows (LedgerChaining)",
    "S9: ",
    depth=18,
    plant=lambda: patch.object(PartitionOpener, "_close_last", look_only),
)
HASTY = Defect(
    "a roll-over answers before the list names the new ledger",
    "S9: ",
    depth=17,
    plant=lambda: patch.object(Publisher, "switch_to", answer_at_once),
    # The second message still goes to the old ledger: its roll-over begins with the first ack.
    world=lambda: chain_world("pq", messages=3, rolls=True),
)
GUESSES = Defect(
    "after a lost answer a take-over that may be another's is taken for one's own",
    "record: write: ",
    depth=13,
    plant=lambda: patch.object(records, "_is_nobody_elses", lambda wanted, known: True),
)

ROLLS = Model(
    name="M7",
    about="a take-over amid publishing and roll-overs, each broker at any time",
    bounds="2 brokers; 2 messages each; a roll-over after each message",
    world=lambda: chain_world("pq", messages=2, rolls=True),
    states=42_106,
    depth=62,
    ci=True,
    defects=(OVERWRITES, LOOKS, HASTY),
)

LOST = Model(
    name="M7-lost",
    about="the same with one answer of the metadata store lost: its write may come late",
    bounds="2 brokers; 1 message each; a roll-over after it; 1 lost answer",
    world=lambda: chain_world("pq", messages=1, rolls=True, faults=1),
    states=300_243,
    depth=74,
    defects=(OVERWRITES, LOOKS, GUESSES),
)

THREE = Model(
    name="M7-three",
    about="two leadership changes: three brokers take over from each other, or race",
    bounds="3 brokers; 1 message each",
    world=lambda: chain_world("pqr", messages=1, rolls=False),
    states=851_960,
    depth=70,
    defects=(OVERWRITES, LOOKS),
)


def claim_world(*, hands: str = "", closes: str = "", expiring: str = "", faults: int = 0) -> World:
    """Make two brokers; the named brokers hand the partition on, unload it, or may lose their
    session."""
    brokers = [
        ClaimBroker(name, other, hands=hands.count(name), closes=closes.count(name))
        for name, other in ("pq", "qp")
    ]
    return World(
        [Record("pq", expiring), *brokers],
        check_claims,
        faults=faults,
        ended=all_claims_served,
    )


def table_with(
    rows: Mapping[tuple[ClaimState, Event], ClaimState],
    waits: frozenset[ClaimState] = frozenset(ownership_states.WAITS),
) -> AbstractContextManager[object]:
    """Plant other rows in the table, and states in which no call has to wait."""
    rest = {state: why for state, why in ownership_states.WAITS.items() if state in waits}
    return patch.multiple(ownership_states, TABLE={**ownership_states.TABLE, **rows}, WAITS=rest)


RELEASED_LATE = {
    (ClaimState.CLAIMING, Event.RELEASED): ClaimState.CLAIMING,
    (ClaimState.SERVING, Event.RELEASED): ClaimState.SERVING,
}
AMID_RELEASE = Defect(
    "a broker claims the record that it is releasing",
    "claim: ",
    depth=22,
    plant=lambda: table_with(
        {(ClaimState.RELEASING, Event.CLAIM): ClaimState.CLAIMING, **RELEASED_LATE},
        frozenset(ownership_states.WAITS) - {ClaimState.RELEASING},
    ),
    world=lambda: claim_world(closes="p"),
)
TAKES_BACK_EARLY = Defect(
    "a broker takes a partition back before it has released the record",
    "claim: ",
    depth=22,
    plant=lambda: table_with(
        {(ClaimState.HANDED, Event.TAKE_BACK): ClaimState.CLAIMING, **RELEASED_LATE},
    ),
    world=lambda: claim_world(hands="p"),
)
STAYS = Defect(
    "a broker whose claim came too late goes on claiming",
    "liveness: ",
    depth=10,
    plant=lambda: table_with({(ClaimState.CLAIMING, Event.TAKEN): ClaimState.CLAIMING}),
    world=claim_world,
)


def sends_on(*args: Any, is_forwarded: bool, **rest: Any) -> Route:
    return route(*args, is_forwarded=False, **rest)


def overlooks_leftover(
    state: ClaimState, owner: str | None, own: str, *args: Any, **rest: Any
) -> Route:
    return route(state, None if owner == own else owner, own, *args, **rest)


SENDS_ON = Defect(
    "a call that another broker sent is sent on by preference, to and fro",
    "liveness: ",
    depth=0,
    plant=lambda: patch.object(claim_nodes, "route", sends_on),
    world=claim_world,
)
LEFTOVER = Defect(
    "a broker does not serve what its own record, left by a failed release, says that it serves",
    "liveness: ",
    depth=17,
    plant=lambda: patch.object(claim_nodes, "route", overlooks_leftover),
    world=lambda: claim_world(closes="p", faults=1),
)

CLAIMS = Model(
    name="M8",
    about="brokers claim a partition, hand it on, unload it and take it back, by the claim table",
    bounds="2 brokers that each take the other for the preferred one; 1 hand-over, 1 unload",
    world=lambda: claim_world(hands="p", closes="p"),
    states=37_718,
    depth=57,
    ci=True,
    defects=(AMID_RELEASE, TAKES_BACK_EARLY, STAYS, SENDS_ON, LEFTOVER),
)

SESSIONS = Model(
    name="M8-sessions",
    about="the same while a session ends, or a release fails",
    bounds="2 brokers; 1 hand-over; 1 fault",
    world=lambda: claim_world(hands="p", expiring="p", faults=1),
    states=99_164,
    depth=48,
    defects=(AMID_RELEASE, STAYS),
)

BOTH = Model(
    name="M8-both",
    about="both brokers hand the partition on, also to and fro",
    bounds="2 brokers; 1 hand-over each",
    world=lambda: claim_world(hands="pq"),
    states=240_594,
    depth=59,
    defects=(TAKES_BACK_EARLY, SENDS_ON),
)

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        FENCING, ENSEMBLE_CHANGE, TWO_RECOVERERS_SMALL, TWO_RECOVERERS, TWO_ENTRIES, PIPELINED,
        STRIPING, ONE_ACK, CHANGING, CRASH_SMALL, CRASH, ROLLS, LOST, THREE, CLAIMS, SESSIONS, BOTH,
    )
}  # fmt: skip
