"""A broker that owns a partition, with its production code, as a node of a world. The real
`Partition` waits in many places at once, so its state cannot be copied. All it does follows from
the answers that it got, in their order: a node is that list, and one more step means living all
of them again, on a loop where no time passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import BrokerError
from octavo.broker.log.cache import TailCache
from octavo.broker.log.ledger_list import LedgerList
from octavo.broker.log.ledger_references import SharedLedgers
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.log.reader import ReadAheadBudget
from octavo.broker.partition.context import PartitionContext
from octavo.broker.partition.partition import PartitionOpening
from octavo.broker.types import PartitionName, Published, TopicSettings
from octavo.ledger.errors import LedgerClosed, LedgerFenced, LedgerNotFound, OutcomeUnknown
from octavo.metadata.bulk_loads import BulkLoadStore
from octavo.metadata.store import MetadataUnavailable, VersionConflict
from octavo.metadata.topic_records import decode_record, encode_record
from octavo.metadata.topics import PartitionRecord, TopicRecord
from octavo.metadata.topics import TopicSettings as StoredSettings
from octavo.protocol.batch import read_header, with_base_offset
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import Record, build_batch, read_records
from tests.model.world import Message, Mood, Node, Nodes

NAME = PartitionName("default", "orders", 0)
INCARNATION = "1"
Answer = tuple[Any, ...]
Event = tuple[int, Answer]


class Batch(NamedTuple):
    data: bytes

    @staticmethod
    def of(text: str) -> Batch:
        return Batch(build_batch([Record(None, text.encode(), (), 0)]))

    def under(self, by: Mapping[str, str]) -> Batch:
        """Rename the publishing broker: a text begins with its broker's name."""
        text = by.get(self.text[0], self.text[0]) + self.text[1:]
        return Batch(with_base_offset(Batch.of(text).data, self.base_offset))

    @property
    def text(self) -> str:
        return str((next(iter(read_records(self.data))).value or b"").decode())

    @property
    def base_offset(self) -> int:
        return read_header(self.data).base_offset

    def brief(self) -> str:
        return f"{self.text}@{self.base_offset}"


class Chained(NamedTuple):
    data: bytes

    @property
    def record(self) -> PartitionRecord:
        return decode_record(PartitionRecord, "record", self.data)

    def brief(self) -> str:
        found = self.record
        links = " ".join(
            f"L{link.ledger_id}@{link.base_offset}{'' if link.count is None else f'+{link.count}'}"
            for link in found.ledgers
        )
        return f"epoch {found.epoch} [{links}]"


def chained(record: PartitionRecord) -> Chained:
    return Chained(encode_record(record))


class Call(NamedTuple):
    to: str
    method: str
    args: tuple[Any, ...]


class Life:
    def __init__(self, name: str, messages: int, rolls: bool, answers: tuple[Event, ...]) -> None:
        self.name, self.messages = name, messages
        self.rollover_entries = 1 if rolls else 1_000
        self.calls: list[Call] = []
        self.open: dict[int, asyncio.Future[Any]] = {}
        self.acked: list[tuple[int, str]] = []
        self.ended = ""
        self._over = False
        loop = _loop()
        main = loop.create_task(self._live())
        _idle(loop)
        for number, answer in answers:
            if number in self.open:
                future = self.open.pop(number)
                if not future.done():
                    future.set_result(answer)
            _idle(loop)
        if main.done():
            main.result()
        if _UNEXPECTED:
            raise _UNEXPECTED.pop()
        self.waits_for = frozenset(n for n, future in self.open.items() if not future.done())
        self._stop(loop)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._over = True
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            _idle(loop)

    async def _live(self) -> None:
        opening = PartitionOpening(
            NAME, INCARNATION, self._partition_context(), self._settings, lambda partition: None
        )
        try:
            partition = await opening.open()
            for number in range(self.messages):
                text = f"{self.name}{number}"
                published: Published = await partition.publish(Batch.of(text).data)
                self.acked.append((published.first_offset, text))
            self.ended = "served"
        except (BrokerError, OctavoError) as error:
            self.ended = error.name

    def _settings(self) -> TopicSettings:
        return TopicSettings(rollover_entries=self.rollover_entries)

    def _partition_context(self) -> PartitionContext:
        def spawn(work: Coroutine[Any, Any, None]) -> object:
            return asyncio.get_running_loop().create_task(work)

        config = BrokerConfig()
        return PartitionContext(
            config, _Ledgers(self), _Topics(self), TailCache(1 << 20),  # type: ignore[arg-type]
            ReadAheadBudget(0), OpenBatches(0), lambda: 0, Random(1), lambda: None, None,  # type: ignore[arg-type]
            lambda: self.name, spawn,
            BulkLoadStore(None),  # type: ignore[arg-type]
            SharedLedgers(None, None, None, 1), None,  # type: ignore[arg-type]
        )  # fmt: skip

    def begin(self, to: str, method: str, *args: Any) -> asyncio.Future[Any]:
        if self._over:
            raise asyncio.CancelledError
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.open[len(self.calls)] = future
        self.calls.append(Call(to, method, args))
        return future

    async def ask(self, to: str, method: str, *args: Any) -> Answer:
        answer: Answer = await self.begin(to, method, *args)
        return answer


class _Topics:
    def __init__(self, life: Life) -> None:
        self._life = life

    async def read_topic(self, *name: Any) -> tuple[TopicRecord, int]:
        return TopicRecord(StoredSettings(), incarnation=INCARNATION), 0

    async def read_partition(self, *name: Any) -> tuple[PartitionRecord, int]:
        kind, *found = await self._life.ask("record", "read")
        if kind == "unavailable":
            raise MetadataUnavailable("no answer")
        return replace(found[0].record, incarnation=INCARNATION), found[1]

    async def write_partition(self, *args: Any, guard: str | None = None) -> int:
        *_, record, version = args
        kind, *found = await self._life.ask("record", "write", chained(record), version)
        if kind == "unavailable":
            raise MetadataUnavailable("no answer")
        if kind == "conflict":
            raise VersionConflict("its version is another")
        return int(found[0])


class _Ledgers:
    def __init__(self, life: Life) -> None:
        self._life = life

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(work)

    def has_unsure_bookie(self, _: object) -> bool:
        """In these models no bookie loses its disk."""
        return False

    async def create(self, **how: Any) -> _Writer:
        _, ledger_id = await self._life.ask("ledgers", "create")
        return _Writer(self._life, ledger_id)

    async def recover(self, ledger_id: int) -> Any:
        kind, *found = await self._life.ask("ledgers", "recover", ledger_id)
        return _closed(ledger_id, kind, found)

    async def look(self, ledger_id: int) -> Any:
        """Return the ledger's content without fencing. Only a planted bug calls it."""
        kind, *found = await self._life.ask("ledgers", "look", ledger_id)
        return _closed(ledger_id, kind, found)

    async def open(self, ledger_id: int, *, recover: bool = False) -> _Reader:
        kind, *found = await self._life.ask("ledgers", "open", ledger_id)
        if kind == "gone":
            raise LedgerNotFound(f"ledger {ledger_id} was deleted")
        return _Reader(ledger_id, found[0])

    async def delete(self, ledger_id: int) -> None:
        self._life.begin("ledgers", "delete", ledger_id)

    async def discard(self, writer: _Writer) -> None:
        writer.abandon(LedgerClosed(f"ledger {writer.ledger_id}"))
        await self.delete(writer.ledger_id)


def _closed(ledger_id: int, kind: str, found: list[Any]) -> Any:
    if kind == "gone":
        raise LedgerNotFound(f"ledger {ledger_id} was deleted")
    entries = found[0]
    return SimpleNamespace(
        ledger_id=ledger_id, last_entry=len(entries) - 1, length=len(entries), custom={}
    )


class _Reader:
    is_closed = True
    copies = 1

    def __init__(self, ledger_id: int, entries: tuple[Batch, ...]) -> None:
        self.ledger_id = ledger_id
        self._entries = entries

    @property
    def last_add_confirmed(self) -> int:
        return len(self._entries) - 1

    async def read(self, first: int, last: int) -> list[Any]:
        return [
            SimpleNamespace(entry_id=entry_id, payload=self._entries[entry_id].data)
            for entry_id in range(first, last + 1)
        ]

    async def entries(self, first: int, last: int) -> Any:
        for entry in await self.read(first, last):
            yield entry

    async def close(self) -> None:
        pass


class _Writer:
    sealing = None
    deferred = False
    metadata = TopicSettings()

    def __init__(self, life: Life, ledger_id: int) -> None:
        self._life = life
        self.ledger_id = ledger_id
        self.error: OctavoError | None = None
        self.on_event: list[Callable[[object], None]] = []
        self._added = 0

    def add(self, payload: bytes, done: Callable[[int, OctavoError | None], None]) -> int:
        if self.error is not None:
            raise self.error
        entry_id = self._added
        self._added += 1
        asked = self._life.begin("ledgers", "add", self.ledger_id, entry_id, Batch(payload))

        def answered(future: asyncio.Future[Answer]) -> None:
            if future.cancelled():
                return
            if future.result()[0] == "fenced":
                self.error = LedgerFenced(f"ledger {self.ledger_id}")
            cause = self.error
            done(entry_id, cause and OutcomeUnknown(self.ledger_id, entry_id, cause))

        asked.add_done_callback(answered)
        return entry_id

    async def close(self) -> None:
        self.error = LedgerClosed(f"ledger {self.ledger_id}")
        if (await self._life.ask("ledgers", "close", self.ledger_id))[0] == "fenced":
            self.error = LedgerFenced(f"ledger {self.ledger_id}")
            raise self.error

    def abandon(self, error: OctavoError) -> None:
        self.error = error

    async def drain(self) -> None:
        pass


_LOOPS: list[asyncio.AbstractEventLoop] = []
_UNEXPECTED: list[Exception] = []
"""Uncaught errors: a life with one proves nothing."""


def _loop() -> asyncio.AbstractEventLoop:
    if not _LOOPS:
        _LOOPS.append(asyncio.new_event_loop())
        _LOOPS[0].set_exception_handler(lambda loop, context: _note(context.get("exception")))
    return _LOOPS[0]


def _note(error: BaseException | None) -> None:
    if isinstance(error, Exception) and not isinstance(error, OctavoError):
        _UNEXPECTED.append(error)


def _idle(loop: asyncio.AbstractEventLoop) -> None:
    """Run until every task waits for an answer. Timers do not fire: they are far away."""
    while True:
        loop.call_soon(loop.stop)
        loop.run_forever()
        if not loop._ready:  # type: ignore[attr-defined]
            return


class Broker(Node):
    """Claims the partition once, at any time, opens it, and publishes `messages`."""

    def __init__(self, name: str, *, messages: int = 1, rolls: bool = False, loses: bool = False):
        super().__init__(name)
        self.messages, self.rolls, self.loses = messages, rolls, loses
        self.claimed = False
        self.answers: tuple[Event, ...] = ()
        self.asked = 0
        self.waits_for: frozenset[int] = frozenset()
        self.unsure: frozenset[int] = frozenset()
        """Calls to the metadata store that may end without an answer."""
        self.acked: tuple[tuple[int, str], ...] = ()
        self.ended = ""

    def moods(self) -> Sequence[Mood]:
        if not self.claimed:
            return [Mood("claim")]
        return [Mood("lose", (call,), 1) for call in sorted(self.unsure)] if self.loses else ()

    def claim(self) -> None:
        self.claimed = True
        self._live()

    def lose(self, call: int) -> None:
        self.answer(call, "unavailable")

    def answer(self, call: int, *answer: Any) -> None:
        self.answers += ((call, answer),)
        self._live()

    def _live(self) -> None:
        life = Life(self.name, self.messages, self.rolls, self.answers)
        for number, call in enumerate(life.calls[self.asked :], self.asked):
            # The content of a closed ledger never changes, so the moment of a read makes no
            # difference.
            post = self.post_at_once if call.method == "open" else self.post
            post(call.to, call.method, self.name, number, *call.args)
        self.asked = len(life.calls)
        self.waits_for = life.waits_for
        self.unsure = frozenset(n for n in self.waits_for if life.calls[n].to == "record")
        self.acked, self.ended = tuple(life.acked), life.ended

    def ignores(self, message: Message, sender: Node) -> bool:
        return message.args[0] not in self.waits_for

    def over(self) -> bool:
        return bool(self.ended)

    def brief(self) -> str:
        acked = " ".join(f"{text}@{offset}" for offset, text in self.acked)
        return f"{self.ended or ('serves or opens' if self.claimed else 'idle')}, acked [{acked}]"


class RecordStore(Node):
    def __init__(self) -> None:
        super().__init__("record")
        self.value = chained(PartitionRecord())
        self.version = 0
        self.owner = ""

    def read(self, sender: str, call: int) -> None:
        self.post(sender, "answer", call, "read", self.value, self.version)

    def write(self, sender: str, call: int, wanted: Chained, version: int) -> None:
        if version != self.version:
            self.post(sender, "answer", call, "conflict")
            return
        self._check(sender, self.value.record, wanted.record)
        self.value, self.version = wanted, self.version + 1
        self.post(sender, "answer", call, "written", self.version)

    def _check(self, sender: str, before: PartitionRecord, after: PartitionRecord) -> None:
        if after.epoch == before.epoch + 1:
            self.owner = sender
        assert after.epoch in (before.epoch, before.epoch + 1), "an epoch was left out"
        assert sender == self.owner, f"{sender} changed the list in the epoch of {self.owner}"
        known = {segment.ledger_id: segment for segment in after.ledgers}
        for segment in before.ledgers:
            if segment.count is not None:
                assert known.get(segment.ledger_id) == segment, (
                    f"closed L{segment.ledger_id} changed"
                )

    def ignores(self, message: Message, sender: Any) -> bool:
        if message.method == "read":
            return message.args[1] not in sender.waits_for
        return message.args[3] != self.version and message.args[1] not in sender.waits_for

    def brief(self) -> str:
        return self.value.brief()


class Kept(NamedTuple):
    entries: tuple[Batch, ...] = ()
    closed: bool = False
    deleted: bool = False


class Ledgers(Node):
    def __init__(self) -> None:
        super().__init__("ledgers")
        self.kept: tuple[Kept, ...] = ()

    def _set(self, ledger_id: int, kept: Kept) -> None:
        self.kept = (*self.kept[:ledger_id], kept, *self.kept[ledger_id + 1 :])

    def create(self, sender: str, call: int) -> None:
        self.kept += (Kept(),)
        self.post(sender, "answer", call, "made", len(self.kept) - 1)

    def add(self, sender: str, call: int, ledger_id: int, entry_id: int, batch: Batch) -> None:
        kept = self.kept[ledger_id]
        if kept.closed or kept.deleted:
            self.post(sender, "answer", call, "fenced")
            return
        assert entry_id == len(kept.entries), "adds of one writer come in order"
        self._set(ledger_id, kept._replace(entries=(*kept.entries, batch)))
        self.post(sender, "answer", call, "stored")

    def close(self, sender: str, call: int, ledger_id: int) -> None:
        kept = self.kept[ledger_id]
        if kept.closed or kept.deleted:
            self.post(sender, "answer", call, "fenced")
            return
        self._set(ledger_id, kept._replace(closed=True))
        self.post(sender, "answer", call, "closed")

    def recover(self, sender: str, call: int, ledger_id: int) -> None:
        self._set(ledger_id, self.kept[ledger_id]._replace(closed=True))
        self.look(sender, call, ledger_id)

    def look(self, sender: str, call: int, ledger_id: int) -> None:
        kept = self.kept[ledger_id]
        answer = ("gone",) if kept.deleted else ("closed", kept.entries)
        self.post(sender, "answer", call, *answer)

    def open(self, sender: str, call: int, ledger_id: int) -> None:
        kept = self.kept[ledger_id]
        answer = ("gone",) if kept.deleted else ("closed", kept.entries)
        self.post_at_once(sender, "answer", call, *answer)

    def delete(self, sender: str, call: int, ledger_id: int) -> None:
        self._set(ledger_id, self.kept[ledger_id]._replace(deleted=True))

    def ignores(self, message: Message, sender: Any) -> bool:
        return False

    def brief(self) -> str:
        def told(kept: Kept) -> str:
            texts = ",".join(batch.text for batch in kept.entries)
            return f"({texts}){'c' if kept.closed else ''}{'d' if kept.deleted else ''}"

        return " ".join(f"L{n}{told(kept)}" for n, kept in enumerate(self.kept))


def check(nodes: Nodes) -> str | None:
    """S9: an acked message is in the log at its offset, and the log's ledgers exist."""
    record: PartitionRecord = nodes["record"].value.record
    ledgers: Ledgers = nodes["ledgers"]
    ledger_list = LedgerList(record.ledgers, record.trimmed_offset)
    log: dict[int, str] = {}
    for segment in ledger_list.segments:
        kept = ledgers.kept[segment.ledger_id]
        if kept.deleted:
            return f"S9: ledger {segment.ledger_id} is part of the log and was deleted"
        if segment.count is not None and (not kept.closed or len(kept.entries) != segment.count):
            return f"S9: the list says that ledger {segment.ledger_id} has {segment.count} entries"
        for batch in kept.entries:
            log[segment.base_offset + batch.base_offset] = batch.text
    for node in nodes.values():
        if isinstance(node, Broker):
            for offset, text in node.acked:
                if log.get(offset) != text:
                    there = log.get(offset, "nothing")
                    return f"S9: {text} was acked at offset {offset}, there is {there}"
    return None


def all_served(nodes: Nodes) -> bool:
    return all(node.over() for node in nodes.values() if isinstance(node, Broker))
