"""Every check of the simulator's referees can fail: each has a story in which it must. A check
without a story here is not known to work."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from octavo.broker.types import PartitionName, StoredBatch
from octavo.metadata.ledger_codec import encode_ledger_metadata
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.topic_records import PartitionLedger, PartitionRecord, encode_record
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch
from tests.sim import chain_audit, ledger_audit, topic_audit
from tests.sim.bulk_load_audit import BulkLoadAudit
from tests.sim.chain_audit import ChainAudit
from tests.sim.events import Events
from tests.sim.ledger_audit import LedgerAudit
from tests.sim.metadata_tree import Change
from tests.sim.topic_audit import Asked, TopicAudit
from tests.sim.trace import Trace
from tests.support.memory_index import MemoryIndex

MODULES: tuple[ModuleType, ...] = (ledger_audit, chain_audit, topic_audit)
OPEN, RECOVERY, CLOSED = LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED
FIRED: set[tuple[str, int]] = set()
NAME = PartitionName("public", "t", 0)


def note_firing() -> None:
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if frame.f_code.co_name not in ("check", "fail", "_fail"):
            if any(module.__file__ == name for module in MODULES):
                FIRED.add((name, frame.f_lineno))
            return
        frame = frame.f_back  # type: ignore[assignment]


class Told(LedgerAudit):
    def __init__(self) -> None:
        super().__init__(lambda: 0.0, Events(lambda: 0.0))
        self.said: list[str] = []

    def fail(self, what: str) -> None:
        note_firing()
        self.said.append(what)
        super().fail(what)


class Story:
    """Events of ledger 1 (3/3/2 on b1, b2, b3), of the partition, and of its subscription."""

    def __init__(self) -> None:
        self.ledgers = Told()
        self.record = LedgerMetadata(
            ledger_id=1,
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            fragments=(Fragment(0, ("b1", "b2", "b3")),),
        )
        self.version = -1
        trace = Trace()
        self.topics = TopicAudit(Events(lambda: 0.0), trace, self.ledgers.fail)
        self.topics.add(NAME, ["s"], repeats=False)
        self.log = self.topics.logs[NAME]
        self.chains = ChainAudit(self.topics, self.ledgers, trace, self.ledgers.fail)

    # Ledgers

    def change(self, **changes: Any) -> Story:
        self.version += changes.pop("step", 1)
        self.record = replace(self.record, **changes)
        value = encode_ledger_metadata(self.record)
        self.ledgers.record_changed(self.record.ledger_id, value, self.version, "w")
        return self

    def add(self, count: int = 1) -> Story:
        for _ in range(count):
            entry_id = len(self.ledgers.ledgers[1].sent)
            self.ledgers.sent(1, entry_id, b"e%d" % entry_id)
        return self

    def store(self, entry_id: int, *bookies: str, recovery: bool = False) -> Story:
        for bookie in bookies:
            self.ledgers.stored(bookie, 1, entry_id, entry_id, recovery)
        return self

    def written(self, count: int) -> Story:
        self.change().add(count)
        for entry_id in range(count):
            self.store(entry_id, "b1", "b2", "b3")
            self.ledgers.acked(1, entry_id)
        return self

    def close(self, last: int) -> Story:
        return self.change(state=CLOSED, last_entry=last, length=2 * (last + 1))

    def hurt(self, bookie: str, how: str) -> Story:
        self.ledgers.damaged[bookie] = how
        return self

    def then(self, method: str, *args: Any) -> Story:
        getattr(self.ledgers, method)(*args)
        return self

    # Topics

    def with_bulk_loads(self) -> Story:
        """Add a referee of bulk loads that accepts everything; test_tool_referees.py tests the
        real one."""
        self.chains.bulk_loads = Mock(spec=BulkLoadAudit)
        return self

    def chain(self, *links: PartitionLedger, store: int = 1, **fields: Any) -> Story:
        record = PartitionRecord(ledgers=links, **({"epoch": 1} | fields))
        path = "/octavo/topics/public/t/partitions/0"
        self.chains.changed(Change(0.0, 0, path, encode_record(record), 0, "k", store))
        return self

    def deleted(self, ledger_id: int) -> Story:
        self.ledgers.record_changed(ledger_id, None, 9, "k")
        self.chains.changed(Change(0.0, 0, "/ledgers/x", None, 0, "k", 1))
        return self

    def send(self, *values: str, at: tuple[int, int] = (0, 0), who: str = "p") -> Story:
        self.log.sends(list(values), who, *at)
        return self

    def tell(self, method: str, *args: Any, **kwargs: Any) -> Story:
        getattr(self.log, method)(*args, **kwargs)
        return self

    def read(self, offset: int, *values: str, count: int | None = None) -> Story:
        data = build_batch([Record(key=None, value=value.encode()) for value in values])
        header = read_header(data)
        if count is not None:
            header = header._replace(record_count=count)
        self.log.batch(StoredBatch(offset, 1, 0, header, data), "r")
        return self

    def gives_up(self) -> Story:
        self.log.cursors["s"].gives_up = True
        return self

    def poll(self, offset: int, value: str) -> Story:
        self.log.polled(self.log.polls("r", offset), [(offset, value)])
        self.log.second_opinion()
        return self


def link(ledger_id: int, base: int, count: int | None = None) -> PartitionLedger:
    return PartitionLedger(ledger_id, base, count)


def storage(entries: dict[int, list[int]], **states: Any) -> Any:
    held = {int(key[1:]): state for key, state in states.items()}
    return SimpleNamespace(
        _states=held,
        _cache=SimpleNamespace(intervals=lambda ledger: [(e, e) for e in entries.get(ledger, [])]),
        _index=MemoryIndex(),
    )


NEW = Fragment(2, ("b1", "b2", "b4"))
TWO = (Fragment(0, ("b1", "b2", "b3")), NEW)

STORIES: dict[str, Callable[[Story], object]] = {
    "P12 born closed": lambda s: s.change(state=CLOSED, last_entry=-1, length=0),
    "S7 versions": lambda s: s.change().change(step=2),
    "P46 changed after deletion": lambda s: s.change().deleted(1).change(),
    "S7 versions are not linear: ledger 1 version 0": lambda s: (
        s.change().deleted(1).change(step=0)
    ),
    "P2 a closed record was changed": lambda s: s.change().close(-1).change(custom={"a": b"b"}),
    "P12 state went back": lambda s: s.change().change(state=RECOVERY).change(state=OPEN),
    "P32 an older fragment": lambda s: (
        s.written(2)
        .change(fragments=TWO)
        .change(state=RECOVERY, fragments=(Fragment(0, ("b1", "b2", "b5")), NEW))
    ),
    "P53 b5 takes over without entries [0, 1]": lambda s: (
        s.written(2).change(fragments=TWO).change(fragments=(Fragment(0, ("b1", "b2", "b5")), NEW))
    ),
    "P54 1 fragments changed, of which 2": lambda s: (
        s.written(2).change(fragments=TWO).change(fragments=(Fragment(0, ("b1", "b4", "b5")), NEW))
    ),
    "P10 fragments were moved": lambda s: (
        s.written(2).change(fragments=TWO).change(fragments=(TWO[0], Fragment(1, NEW.bookies)))
    ),
    "P17 a fragment begins at": lambda s: s.written(1).change(fragments=TWO),
    "P31 a recovery published": lambda s: s.written(2).change(state=RECOVERY).change(fragments=TWO),
    "P31 marking changed": lambda s: s.written(2).change(state=RECOVERY, fragments=TWO),
    "S3 closed at": lambda s: s.written(2).close(0),
    "P8 closed below LAC": lambda s: s.written(1).then("learnt", "r", 1, -1, 0).close(-1),
    "P13 ledger 1 entry 1 answered after": lambda s: s.change().then("answered_early", 1, 1),
    "P21 b1 defers": lambda s: s.change().then("deferred", "b1", 1, 0, 0, True),
    "P20 closed at": lambda s: (
        s.written(1).add().store(1, "b1", "b2").then("refused", 1, 1).close(1)
    ),
    "P6 closed above": lambda s: (
        s.change().add().store(0, "b1", "b2").store(1, "b1", "b2").close(1)
    ),
    "P11 length": lambda s: s.written(1).change(state=CLOSED, last_entry=0, length=5),
    "P5 ledger": lambda s: s.change().add().store(0, "b1").close(0),
    "P6 ledger 1 entry 1: a gap": lambda s: s.change().then("sent", 1, 1, b"x"),
    "P13": lambda s: s.change().add(2).store(1, "b1", "b2").then("acked", 1, 1),
    "P4": lambda s: s.change().add().close(-1).store(0, "b1", "b2").then("acked", 1, 0),
    "P15": lambda s: s.change().add().store(0, "b1", "b4").then("acked", 1, 0),
    "P19": lambda s: (
        s.change().add().then("fence_holds", 1).store(0, "b1", "b2").then("acked", 1, 0)
    ),
    "P20 entry 0 refused": lambda s: s.written(1).close(0).then("refused", 1, 0),
    "S2": lambda s: s.written(1).close(0).then("closed", "q", replace(s.record, last_entry=-1)),
    "S2 not closed": lambda s: s.written(1).then("closed", "q", replace(s.record, last_entry=0)),
    "P46 b1 took": lambda s: s.change().then("forgotten", "b1", 1).store(0, "b1"),
    "P24 fenced,": lambda s: s.change().then("fence_durable", "b1", 1).add().store(0, "b1"),
    "P28": lambda s: s.change().then("denied", "b1", 1, 0).add().store(0, "b1"),
    "P31 ledger 1 entry 0": lambda s: s.change().then("answered", "b9", 1, 0),
    "P38": lambda s: s.written(1).then("reopened", "b1", storage({})),
    "P24 bookie b1 forgot": lambda s: s.then("fence_durable", "b1", 1).then(
        "reopened", "b1", storage({})
    ),
    "P8 bookie b1 forgot LAC": lambda s: s.then("lac_durable", "b1", 1, 3).then(
        "reopened", "b1", storage({})
    ),
    "P40 bookie b1 holds": lambda s: s.then("forgotten", "b1", 1).then(
        "reopened", "b1", storage({})
    ),
    "P46 b1 forgets": lambda s: s.change().then("marker_dropped", "b1", 1),
    "P42 bookie b1 lost its disk": lambda s: (
        s.written(1).then("disk_lost", "b1").then("serves", "b1", lambda ledger_id: ledger_id > 1)
    ),
    "P42 its disk lost": lambda s: s.written(1).then("disk_lost", "b1").add().store(1, "b1"),
    "P38 bookie b1 lost ledger 1": lambda s: (
        s.change()
        .then("disk_lost", "b1")
        .hurt("b1", "wiped")
        .add()
        .store(0, "b1")
        .then("reopened", "b1", storage({}))
    ),
    "S6 reader r of ledger 1: LAC 1 → 0": lambda s: s.written(2).then("learnt", "r", 1, 1, 0),
    "S6 reader r of ledger 1: LAC -1 → 2, above 1": lambda s: s.written(2).then(
        "learnt", "r", 1, -1, 2
    ),
    "P6 reader": lambda s: s.written(1).then("read", "r", 1, 1, b"e1"),
    "S4 reader": lambda s: s.written(1).then("read", "r", 1, 0, b"e7"),
    "S1 reader": lambda s: s.written(1).then("absent", "r", 1, 0, "no such entry"),
    # Chains
    "S9 the epoch jumps": lambda s: s.chain(epoch=2),
    "S9 somebody else": lambda s: s.chain().chain(store=2, trimmed_offset=0, state_ledger=4),
    "S9 a link does not begin": lambda s: s.chain(link(1, 0, 2), link(2, 3)),
    "S9 a closed link was changed": lambda s: s.chain(link(1, 0, 2)).chain(link(1, 0, 3)),
    "S9 a link was moved": lambda s: s.chain(link(1, 0)).chain(link(1, 1)),
    "S9 links vanished": lambda s: s.chain(link(1, 0, 2), link(2, 2, 1), link(3, 3)).chain(
        link(1, 0, 2), link(3, 3)
    ),
    "S9 more than one": lambda s: s.chain().chain(link(1, 0, 1), link(2, 1)),
    "S9 ledger 1 is followed": lambda s: (
        s.written(1).chain(link(1, 0)).chain(link(1, 0, 1), link(2, 1))
    ),
    "S9 ledger 1 ends at 0": lambda s: s.written(1).close(0).chain(link(1, 0)).chain(link(2, 0)),
    "S9 the chain goes back": lambda s: s.change().close(-1).chain(link(1, 5)).chain(link(2, 3)),
    "S9 what was trimmed": lambda s: s.chain(trimmed_offset=3).chain(trimmed_offset=2),
    "S9 a chain is changed that is being deleted": lambda s: s.chain(link(1, 0)).chain(
        link(1, 0, 2), deleted=True
    ),
    "P46 ledger 1 of": lambda s: s.change().chain(link(1, 0)).deleted(1),
    "P46 state ledger": lambda s: s.change().chain(link(2, 0), state_ledger=1).deleted(1),
    "X2 not between": lambda s: (
        s.with_bulk_loads()
        .chain(link(1, 0, 2), link(2, 2))
        .chain(link(1, 0, 2), link(3, 2, 1), link(2, 3))
    ),
    # Topics
    "S9 public/t/0: it goes on elsewhere": lambda s: s.tell("fails", "it goes on elsewhere"),
    "S9 public/t/0 offset 0 'a' was refused": lambda s: (
        s.send("a").read(0, "a").tell("refused", ["a"])
    ),
    "S9 public/t/0: a batch of 1": lambda s: s.send("a").read(0, "a", count=2),
    "S9 public/t/0 offset 0 held": lambda s: s.send("a", "b").read(0, "a").read(0, "b"),
    "S9 public/t/0 offset 0: 'a' was never sent": lambda s: s.read(0, "a"),
    "S9 public/t/0 offset 0: 'a' was refused": lambda s: (
        s.send("a").tell("refused", ["a"]).read(0, "a")
    ),
    "S9 twice": lambda s: s.send("a").read(0, "a").read(1, "a"),
    "S9 public/t/0 offset 0 'b' was sent when": lambda s: (
        s.send("a").tell("acked", ["a"], 1, duplicate=False).send("b", at=(0, 1)).read(0, "b")
    ),
    "S9 public/t/0, of the history": lambda s: s.send("a").poll(0, "a").poll(0, "b"),
    "S9 public/t/0: nothing at": lambda s: s.tell("check_whole", 0, 1),
    "S9 public/t/0: 'a' was acked and is nowhere": lambda s: (
        s.send("a").tell("acked", ["a"], -1, duplicate=True).tell("check_whole", 0, 0)
    ),
    "S9 public/t/0 offset 0 'a' was acked, the log ends": lambda s: (
        s.send("a").tell("acked", ["a"], 0, duplicate=False).tell("check_whole", 0, 0)
    ),
    "S9 public/t/0 ended at 1 once": lambda s: s.send("a").read(0, "a").tell("check_whole", 0, 0),
    "S9 producer p out of order": lambda s: (
        s.send("a", "b").read(0, "b", "a").tell("check_whole", 0, 2)
    ),
    "S9 producer p has a gap": lambda s: (
        s.send("a", "b", "c").read(0, "a", "c").tell("check_whole", 0, 2)
    ),
    "S9 public/t/0 subscription s: offset 0 was acked in epoch 1": lambda s: (
        s.send("a")
        .tell("ack_ends", "s", [0], 1, 0)
        .tell("delivered", "s", [(0, "a", 1, 1, 1, 1)], Asked(0, {0: 1}))
    ),
    "S9 public/t/0 cursor s went from": lambda s: (
        s.tell("ack_begins", "s", [0]).tell("mark_seen", "s", 1, 1).tell("mark_seen", "s", 1, 0)
    ),
    "S9 public/t/0 subscription s: nobody acked offset 0": lambda s: s.tell("mark_seen", "s", 1, 1),
    "S9 public/t/0 subscription s never got": lambda s: s.tell("check_cursors", 1),
    "S9 public/t/0 subscription s epoch 1: offset 0 came first": lambda s: (
        s.send("a", "b")
        .tell("delivered", "s", [(1, "b", 1, 1, 1, 1), (0, "a", 1, 1, 2, 1)], Asked(0, {}))
        .tell("check_cursors", 2)
    ),
    "X15 public/t/0 subscription s: offset 0": lambda s: s.send("a").tell(
        "delivered", "s", [(0, "a", 2, 2, 1, 1)], Asked(0, {}, {0: (1, 2)})
    ),
    "X14 public/t/0 offset 0 is 'a'": lambda s: (
        s.send("a").read(0, "a").tell("letters", "s", {0: [("b", 3)]}, 3)
    ),
    "X14 public/t/0 subscription s: offset 0 was given up": lambda s: s.tell(
        "letters", "s", {0: [("a", 1)]}, 3
    ),
    "X14 public/t/0 offset 0 is 2 letters": lambda s: s.tell(
        "letters", "s", {0: [("a", 3), ("a", 3)]}, 3
    ),
    "X14 public/t/0 subscription s: offset 0 counts as acked": lambda s: (
        s.gives_up().tell("mark_seen", "s", 1, 1).tell("letters", "s", {}, 3)
    ),
}


@pytest.mark.parametrize("said", STORIES)
def test_it_is_said(said: str) -> None:
    story = Story()
    STORIES[said](story)
    expected = said.removesuffix(" not closed").removesuffix(" born closed")
    assert any(what.startswith(expected) for what in story.ledgers.said), story.ledgers.said


UNREACHABLE = {
    "P10 the first fragment": "LedgerMetadata refuses such a record before",
    "S7 fragments do not ascend": "the same",
    "S7 a bookie stands twice": "the same",
    "X9 a compacted view is taken back": "test_tool_referees has its story",
    ", of its view, was deleted": "the same",
    "is trimmed to": "the same",
    "in a view; appended": "test_topic_referees has its story",
}
"""Checks that another check precedes, and checks that another file covers."""


def test_each_check_has_fired() -> None:
    for tell in STORIES.values():
        tell(Story())
    silent = [
        f"{module.__name__}:{call.lineno}: {text[:90]}"
        for module in MODULES
        for call, text in checks_of(module)
        if not any(
            name == module.__file__ and call.lineno <= line <= (call.end_lineno or call.lineno)
            for name, line in FIRED
        )
        and not any(known in text for known in UNREACHABLE)
    ]
    assert not silent, "no story makes these fail:\n" + "\n".join(silent)


def checks_of(module: ModuleType) -> list[tuple[ast.Call, str]]:
    """Yield the calls of `check` and `fail` in a module, with their text."""
    tree = ast.parse(inspect.getsource(module))
    found: list[tuple[ast.Call, str]] = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in ("check", "fail"):
            continue
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Attribute(ast.Name("self"), "check" | "fail" | "_fail")):
                    found.append((node, ast.unparse(node)))
    return found


def test_a_good_life_is_not_blamed() -> None:
    story = Story().written(3).change(fragments=(TWO[0], Fragment(3, ("b1", "b2", "b4"))))
    story.then("learnt", "r", 1, -1, 2).then("read", "r", 1, 2, b"e2")
    story.change(state=RECOVERY).then("fence_holds", 1).then("denied", "b1", 1, 3).close(2)
    story.then("closed", "q", story.record)
    story.send("a", "b").tell("acked", ["a", "b"], 0, duplicate=False).read(0, "a", "b")
    story.tell("delivered", "s", [(0, "a", 1, 1, 1, 1), (1, "b", 1, 1, 2, 1)], Asked(0, {}))
    story.tell("ack_begins", "s", [0, 1]).tell("ack_ends", "s", [0, 1], 1, 0)
    story.tell("mark_seen", "s", 1, 2).tell("check_cursors", 2).tell("check_whole", 0, 2)
    story.chain(link(1, 0)).chain(link(1, 0, 3), link(2, 3), trimmed_offset=0)
    story.chain(link(2, 3), trimmed_offset=2, epoch=1)
    assert not story.ledgers.said
