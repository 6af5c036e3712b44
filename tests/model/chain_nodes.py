"""A topic's processes: brokers, the partition's record, and the ledgers. The ledgers do what M1
to M6 prove of them, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from octavo.broker.log.ledger_list import LedgerList
from octavo.metadata.topics import PartitionRecord
from tests.model.broker_life import Batch, Chained, Event, Life, chained
from tests.model.world import Message, Mood, Node, Nodes


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
