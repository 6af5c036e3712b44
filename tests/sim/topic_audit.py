"""The referee of the topics: every message that was sent, and every place where it was seen.

It compares each answer with everything known so far: one content at one offset, one offset for one
message, no message that was never sent, the order of real time and of each producer, acks that
hold. A call with an unknown outcome may have happened. At the end the whole log is read, and
nothing may be missing (S9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from octavo.broker.types import PartitionName, StoredBatch
from octavo.protocol.append_time import readable
from octavo.protocol.records import read_records
from tests.sim.append_audit import AppendAudit
from tests.sim.events import Events
from tests.sim.odd_values import OddValues
from tests.sim.trace import Trace
from tests.support.kit.checkers import check_topics
from tests.support.kit.history import Call, History, Operation

Fail = Callable[[str], None]


@dataclass(slots=True, eq=False)
class Message:
    value: str
    producer: str
    place: tuple[int, int]
    """Epoch and sequence of a numbered message. Plain messages: −1 and the number of the call;
    bulk-loaded messages: −2."""
    floor: int
    """The highest acked offset when it was first sent; its offset is higher."""
    offset: int = -1
    acked: bool = False
    refused: bool = False
    """Its sender was told that it is certainly not stored."""
    stamp_ms: int | None = None
    """Its timestamp as sent or read, or None while unknown."""
    acked_ms: int = 0
    """When its sender was first told, in seeds with append times; else 0."""
    sent_ms: int = 0
    """When it was first sent, by the one true time; 0 when unknown."""
    send: Operation | None = None
    """Its send in the history that `tests/support/kit/checkers.py` checks at the end."""


class Asked(NamedTuple):
    moves: int
    acked: dict[int, int]
    """Offset with an answered ack → the epoch of the owner that answered."""
    told: Mapping[int, tuple[int, int]] = MappingProxyType({})
    """Offset → epoch and delivery count as consumers were told."""


@dataclass(slots=True, eq=False)
class CursorHistory:
    name: str
    attempted: set[int] = field(default_factory=set)
    confirmed: dict[int, int] = field(default_factory=dict)
    """Offset with an answered ack → the epoch of the owner that answered."""
    delivered: set[int] = field(default_factory=set)
    skipped: int = 0
    """Offsets before it may count as acked because of a seek."""
    moves: int = 0
    """How many seeks have begun or ended: acks that overlap a seek do not count as confirmed."""
    loose: int = 0
    """Seeks without a known outcome: they may take effect at any time, after the client's death
    too."""
    alone: bool = True
    """No other seek has begun since the present seek."""
    unsure: Counter[int] = field(default_factory=Counter)
    """Offset → its unanswered acks, which may still take effect."""
    since: set[int] = field(default_factory=set)
    """Offsets attempted since the present seek began."""
    asked: int = 0
    answered: int = 0
    """Answered receives. Messages of an unanswered receive come again, after later messages."""
    fresh: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Era → (lease, offset) of first deliveries."""
    mark: tuple[int, int] = (0, 0)
    """Epoch and committed offset as last seen."""
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Offset → epoch and delivery count of the delivery last answered."""
    releases: bool = False
    """Its consumers give back messages unread: these come again as for the first time."""
    gives_up: bool = False
    owed: set[int] = field(default_factory=set)
    """Offsets that count as acked without an attempt: they must be in the dead-letter topic."""

    def asks(self) -> Asked:
        """Begin a receive; pass the result on with the delivered messages."""
        self.asked += 1
        return Asked(self.moves, dict(self.confirmed), dict(self.told))


class LogHistory:
    def __init__(
        self, name: PartitionName, subscriptions: Iterable[str], trace: Trace, fail: Fail
    ) -> None:
        self.name = name
        self.sent: dict[str, Message] = {}
        self.at: dict[int, Message] = {}
        self.acked_end = 0
        self.seen_end = 0
        self.trimmed = 0
        self.cursors = {sub: CursorHistory(sub) for sub in subscriptions}
        self.repeats_allowed = False
        """Requests may come twice: a message without a sequence may be stored twice."""
        self.passes: Callable[[str, str], bool] = lambda sub, value: True
        """Whether a message belongs to a subscription; others count as acked. "": unknown
        message."""
        self.order_of: Callable[[str, str], bytes | None] = lambda sub, value: b""
        """The order that a message belongs to: one for all, its key's, or None."""
        self.odd = OddValues(fail)
        self.appends: AppendAudit | None = None
        self.appended: dict[int, int] = {}
        """Offset → its shown append time, or −1 for none."""
        self.unordered: set[str] = set()
        """Subscriptions that deliver messages when they are due."""
        self.history = History(lambda: 0.0)
        """Sends and ordered reads, for a second opinion."""
        self._trace = trace
        self._fail = fail

    # -- publishing

    def sends(self, values: Sequence[str], producer: str, epoch: int, sequence: int) -> None:
        for number, value in enumerate(values):
            assert value not in self.sent
            place = (epoch, sequence + number)
            message = Message(value, producer, place, self.acked_end - 1)
            # Plain messages keep no order: a late message may come after the next.
            process = producer if epoch >= 0 else f"{producer} {value}"
            message.send = self.history.invoke(process, Call.SEND, str(self.name), value)
            self.sent[value] = message

    def acked(self, values: Sequence[str], first_offset: int, *, duplicate: bool) -> None:
        """Note acked messages; offset −1 when it is not known any more."""
        if duplicate:
            self._trace.probe("topic.duplicate")
        for number, value in enumerate(values):
            message = self.sent[value]
            if not message.acked and message.send is not None:
                told = first_offset + number if first_offset >= 0 else None
                self.history.ok(message.send, told)
            if self.appends is not None and not message.acked:
                message.acked_ms = self.appends.now_ms()
            message.acked = True
            if first_offset >= 0:
                self._see(first_offset + number, value, "its publisher was told")
                self.acked_end = max(self.acked_end, first_offset + number + 1)

    def stamped(self, values: Sequence[str], stamps_ms: Sequence[int], now_ms: int) -> None:
        for value, stamp_ms in zip(values, stamps_ms, strict=True):
            message = self.sent[value]
            if not message.sent_ms:
                message.sent_ms = now_ms
                if self.appends is None or self.appends.how == "create":
                    message.stamp_ms = stamp_ms  # else its time is not known yet

    def refused(self, values: Sequence[str]) -> None:
        """Note messages that are certainly not stored and never sent again."""
        for value in values:
            message = self.sent[value]
            message.refused = True
            if message.send is not None:
                self.history.fail(message.send)
            if message.offset >= 0:
                self._fail(f"S9 {self._at(message)} was refused: not stored")

    def fails(self, what: str) -> None:
        """Fail: a reader found something other than a log."""
        self._fail(f"S9 {self.name}: {what}")

    def stands(self, values: Sequence[str], first_offset: int, who: str) -> None:
        """Note messages that are in the log from now on, without an answer to their sender."""
        for offset, value in enumerate(values, first_offset):
            self._see(offset, value, who)

    def _at(self, message: Message) -> str:
        return f"{self.name} offset {message.offset} {message.value!r}"

    # -- reading

    def batch(self, batch: StoredBatch, who: str) -> list[tuple[int, str]]:
        found = []
        header = batch.header
        appended_ms = header.max_timestamp if header.partition_leader_epoch > 0 else None
        for record in read_records(readable(header, batch.data)):
            value = self.odd.name_of(record, who)
            offset = batch.base_offset + record.offset_delta
            self._see(offset, value, who)
            if (message := self.at.get(offset)) is not None:
                if appended_ms is None:
                    message.stamp_ms = record.timestamp_ms
                if self.appends is not None:
                    self.appends.shown(self, offset, appended_ms, who)
            found.append((offset, value))
        if len(found) != batch.header.record_count:
            self._fail(f"S9 {self.name}: a batch of {len(found)}, told {batch.header.record_count}")
        return found

    def time_at(self, offset: int) -> int | None:
        """Return the time of the message there, or None while unknown. A message that was stored
        twice has two append times."""
        appended_ms = self.appended.get(offset)
        if appended_ms is not None and appended_ms >= 0:
            return appended_ms
        if appended_ms is None and self.appends is not None and self.appends.how != "create":
            return None
        message = self.at.get(offset)
        return None if message is None else message.stamp_ms

    def viewed(self, offset: int, time_ms: int, who: str) -> None:
        known = self.appended.get(offset, -1)
        if known >= 0 and known != time_ms:
            self._fail(
                f"P66 {self.name} offset {offset}: {who} sees {time_ms} in a view; appended {known}"
            )

    def polls(self, who: str, offset: int) -> Operation:
        return self.history.invoke(who, Call.POLL, str(self.name), offset)

    def polled(self, poll: Operation, found: Iterable[tuple[int, str]]) -> None:
        self.history.ok(poll, [(offset, value) for offset, value in found if offset >= poll.value])

    def second_opinion(self) -> None:
        if not self.trimmed:
            self.history.add_done("judge", Call.DRAIN, str(self.name))
        plain = [m.send for m in self.sent.values() if m.send is not None and m.place[0] == -1]
        twice = frozenset(send.process for send in plain if self.repeats_allowed)
        for problem in check_topics(self.history, at_least_once=twice, dense=True):
            self._fail(f"S9 {self.name}, of the history: {problem}")

    def _see(self, offset: int, value: str, who: str) -> None:
        message = self.sent.get(value)
        known = self.at.get(offset)
        if known is not None:
            if known is not message:
                self._fail(
                    f"S9 {self.name} offset {offset} held {known.value!r}, now {value!r} ({who})"
                )
            return
        if message is None:
            self._fail(f"S9 {self.name} offset {offset}: {value!r} was never sent ({who})")
            return
        self.at[offset] = message
        self.seen_end = max(self.seen_end, offset + 1)
        if message.refused:
            self._fail(f"S9 {self.name} offset {offset}: {value!r} was refused, and is here")
        if message.offset >= 0:
            if not (self.repeats_allowed and message.place[0] == -1):
                self._fail(f"S9 twice: {self._at(message)} stands at {offset}, too ({who})")
            return
        message.offset = offset
        if offset <= message.floor:
            self._fail(
                f"S9 {self._at(message)} was sent when offset {message.floor} was acked ({who})"
            )

    # -- the end

    def check_whole(self, first: int, end: int) -> None:
        for offset in range(first, end):
            if offset not in self.at:
                self._fail(f"S9 {self.name}: nothing at offset {offset} of {first} … {end}")
                return
        for message in self.sent.values():
            if message.acked and message.offset < 0 and not self.trimmed:
                self._fail(f"S9 {self.name}: {message.value!r} was acked and is nowhere")
            elif message.acked and message.offset >= end:
                self._fail(f"S9 {self._at(message)} was acked, the log ends at {end}")
        if self.seen_end > end:
            self._fail(f"S9 {self.name} ended at {self.seen_end} once, and ends at {end} now")
        self._check_producers(first)
        if self.appends is not None:
            self.appends.check(self)

    def _check_producers(self, first: int) -> None:
        latest: dict[str, Message] = {}
        for _, message in sorted(self.at.items()):
            if message.place[0] < 0:
                continue
            before = latest.get(message.producer)
            latest[message.producer] = message
            if before is not None and before.place >= message.place:
                self._fail(
                    f"S9 producer {message.producer} out of order: {self._at(before)}, then "
                    f"{self._at(message)}"
                )
            elif (
                before is not None and before.offset >= first and _gap(before.place, message.place)
            ):
                self._fail(
                    f"S9 producer {message.producer} has a gap: {self._at(before)}, then "
                    f"{self._at(message)}"
                )

    # -- cursors

    def ack_begins(self, sub: str, offsets: Iterable[int]) -> int:
        cursor = self.cursors[sub]
        tried = list(offsets)
        cursor.attempted.update(tried)
        cursor.since.update(tried)
        cursor.unsure.update(tried)
        return cursor.moves

    def ack_ends(self, sub: str, offsets: Iterable[int], epoch: int, moves: int) -> None:
        cursor = self.cursors[sub]
        done = list(offsets)
        cursor.unsure.subtract(done)
        if moves != cursor.moves or cursor.loose:
            return
        for offset in done:
            cursor.confirmed[offset] = max(epoch, cursor.confirmed.get(offset, 0))

    def seek_begins(self, sub: str, offset: int) -> None:
        cursor = self.cursors[sub]
        cursor.moves += 1
        cursor.alone = not cursor.loose
        cursor.since.clear()
        cursor.loose += 1
        cursor.confirmed = {o: e for o, e in cursor.confirmed.items() if o < offset}
        cursor.skipped = max(cursor.skipped, offset)
        cursor.told.clear()

    def seek_ends(self, sub: str, offset: int, *, known: bool) -> None:
        """Note a seek's answer that the cursor is at `offset`, or (not `known`) its unknown
        outcome.

        From there on nothing counts as acked any more, except for acks in progress.
        """
        cursor = self.cursors[sub]
        cursor.moves += 1
        cursor.told.clear()
        # An ack during the seek may have come before the seek took effect.
        cursor.confirmed = {o: e for o, e in cursor.confirmed.items() if o < offset}
        if not known:
            cursor.confirmed.clear()
            return
        cursor.loose -= 1
        if cursor.alone and not cursor.loose:
            cursor.skipped = max(offset, self.trimmed)
            cursor.attempted = {
                one
                for one in cursor.attempted
                if one < offset or one in cursor.since or cursor.unsure[one] > 0
            }

    def delivered(
        self, sub: str, given: Sequence[tuple[int, str, int, int, int, int]], asked: Asked
    ) -> None:
        """Check deliveries: (offset, value, epoch, era, lease, delivery count) each.

        The era is the epoch that the ack id names; lease numbers ascend within it. A seek since the
        request may have come before the delivery, and the acks that count now after it.
        """
        cursor = self.cursors[sub]
        for offset, value, epoch, era, lease, count in given:
            self._see(offset, value, f"subscription {sub}")
            cursor.delivered.add(offset)
            self._check_count(cursor, asked, offset, epoch, count)
            if count == 1:
                cursor.fresh.setdefault(era, []).append((lease, offset))
            else:
                self._trace.probe("topic.redelivered")
            by = asked.acked.get(offset)
            if by is None or offset not in cursor.confirmed or asked.moves != cursor.moves:
                continue
            if by <= epoch:
                self._fail(
                    f"S9 {self.name} subscription {sub}: offset {offset} was acked in epoch {by} "
                    f"and is delivered again in epoch {epoch}"
                )
            else:
                self._trace.probe("topic.zombie_delivery")

    def _check_count(
        self, cursor: CursorHistory, asked: Asked, offset: int, epoch: int, count: int
    ) -> None:
        before = asked.told.get(offset, (0, 0))
        cursor.told[offset] = max(cursor.told.get(offset, (0, 0)), (epoch, count))
        if asked.moves != cursor.moves or cursor.loose:
            cursor.told.pop(offset)
        elif epoch >= before[0] and count < before[1]:
            self._fail(
                f"X15 {self.name} subscription {cursor.name}: offset {offset} was delivered for "
                f"the {before[1]}. time in epoch {before[0]}, and for the {count}. in {epoch}"
            )
        elif epoch > before[0] > 0 and count > 1:
            self._trace.probe("letters.counts_survive")

    def letters(
        self, sub: str, found: dict[int, list[tuple[str, int]]], max_deliveries: int
    ) -> None:
        cursor = self.cursors[sub]
        for offset, copies in sorted(found.items()):
            self._trace.probe("letters.sent")
            known = self.at.get(offset)
            for value, times in copies:
                if known is not None and known.value != value:
                    self._fail(f"X14 {self.name} offset {offset} is {known.value!r}, not {value!r}")
                if times < max_deliveries:
                    self._fail(
                        f"X14 {self.name} subscription {sub}: offset {offset} was given up after "
                        f"{times} deliveries"
                    )
            if len(copies) > 1 and not cursor.moves:
                self._fail(f"X14 {self.name} offset {offset} is {len(copies)} letters of {sub}")
        lost = sorted(cursor.owed - found.keys() - cursor.attempted)
        if lost:
            self._fail(
                f"X14 {self.name} subscription {sub}: offset {lost[0]} counts as acked, nobody "
                "acked it, and it is in no dead-letter topic"
            )
        cursor.delivered |= found.keys()

    def mark_seen(self, sub: str, epoch: int, mark: int) -> None:
        cursor = self.cursors[sub]
        self._check_attempted(cursor, mark, "its cursor stands there")
        if (epoch, mark) < cursor.mark and epoch >= cursor.mark[0] and not cursor.moves:
            self._fail(f"S9 {self.name} cursor {sub} went from {cursor.mark[1]} back to {mark}")
        if epoch > cursor.mark[0] and mark < cursor.mark[1] and not cursor.moves:
            self._trace.probe("topic.cursor_behind")
        cursor.mark = max(cursor.mark, (epoch, mark))

    def trim(self, first: int) -> None:
        for cursor in self.cursors.values():
            self._check_attempted(cursor, first, "it was trimmed")
        self.trimmed = max(self.trimmed, first)

    def _check_attempted(self, cursor: CursorHistory, end: int, why: str) -> None:
        for offset in range(cursor.skipped, end):
            message = self.at.get(offset)
            if not self.passes(cursor.name, "" if message is None else message.value):
                continue
            if offset not in cursor.attempted:
                if cursor.gives_up:
                    cursor.owed.add(offset)
                    continue
                self._fail(
                    f"S9 {self.name} subscription {cursor.name}: nobody acked offset {offset}, "
                    f"and {why} (up to {end})"
                )
                return

    def check_cursors(self, end: int) -> None:
        for cursor in self.cursors.values():
            for offset in range(cursor.skipped, end):
                message = self.at.get(offset)
                if message is not None and not self.passes(cursor.name, message.value):
                    continue
                if offset not in cursor.delivered and offset not in cursor.attempted:
                    self._fail(
                        f"S9 {self.name} subscription {cursor.name} never got offset {offset} of "
                        f"{end}"
                    )
                    return
            still = not (cursor.moves or cursor.releases) and cursor.asked == cursor.answered
            if still and cursor.name not in self.unordered:
                self._check_order(cursor)

    def _check_order(self, cursor: CursorHistory) -> None:
        for epoch, given in cursor.fresh.items():
            latest: dict[bytes, int] = {}
            for lease, offset in sorted(dict.fromkeys(given)):
                order = self.order_of(cursor.name, self.at[offset].value)
                if order is None:
                    continue
                if offset <= latest.get(order, -1):
                    self._fail(
                        f"S9 {self.name} subscription {cursor.name} epoch {epoch}: offset {offset} "
                        f"came first after {latest[order]} (lease {lease})"
                    )
                    return
                latest[order] = offset


class TopicAudit:
    def __init__(self, events: Events, trace: Trace, fail: Fail) -> None:
        self.logs: dict[PartitionName, LogHistory] = {}
        self.fail = fail
        self._events = events
        self._trace = trace

    def add(self, name: PartitionName, subscriptions: Iterable[str], *, repeats: bool) -> None:
        self.logs[name] = LogHistory(name, subscriptions, self._trace, self.fail)
        self.logs[name].repeats_allowed = repeats


def _gap(before: tuple[int, int], after: tuple[int, int]) -> bool:
    if before[0] == after[0]:
        return after[1] != before[1] + 1
    return after[1] != 0
