"""The audit of a cluster's disks and of its users' records finds their faults."""

from __future__ import annotations

import pytest

from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from tests.support.kit.history import Call
from tests.support.processes.audit import Copies, problems, replica_problems
from tests.support.processes.users import Place, Record, note_read, payload

CLOSED = LedgerMetadata(
    7, 3, 3, 2, (Fragment(0, ("a", "b", "c")),), state=LedgerState.CLOSED, last_entry=2
)


def good_copies() -> Copies:
    return {entry: dict.fromkeys("abc", b"%d" % entry) for entry in range(3)}


def test_good_replicas_are_good() -> None:
    copies = good_copies()
    del copies[1]["a"]
    copies[3] = {"c": b"never acked"}
    assert list(replica_problems(CLOSED, copies)) == []


@pytest.mark.parametrize(
    ("entry", "held", "said"),
    [
        (1, {"a": b"1"}, "entry 1 of 2: only ['a'] of ['b', 'c', 'a'] hold it"),
        (2, {}, "entry 2 of 2: only [] of"),
        (0, {"a": b"0", "b": b"other", "c": b"0"}, "entry 0 of 2: its copies differ"),
        (1, {"a": b"1", "z": b"1"}, "entry 1 of 2: only ['a']"),
    ],
)
def test_bad_replicas_are_found(entry: int, held: dict[str, bytes], said: str) -> None:
    copies = {**good_copies(), entry: held}
    assert any(said in problem for problem in replica_problems(CLOSED, copies))


def topic(count: int = 6) -> tuple[Record, dict[Place, tuple[str, str]]]:
    record, found = Record(), dict[Place, tuple[str, str]]()
    for number in range(count):
        text = payload("p0", number)
        record.keys[text] = "k"
        one = record.history.invoke("p0", Call.SEND, value=text, key="k")
        record.history.ok(one, number, log="0")
        found[0, number] = (text, "k")
    return record, found


def said(record: Record, found: dict[Place, tuple[str, str]]) -> list[str]:
    note_read(record, "auditor", [(place, found[place][0]) for place in sorted(found)])
    return problems(record, found)


def test_a_good_topic_is_good() -> None:
    assert said(*topic()) == []


def test_what_is_wrong_with_a_topic_is_found() -> None:
    record, found = topic()
    del found[0, 5]
    assert any("lost" in one or "unseen" in one for one in said(record, found))

    record, found = topic()
    found[0, 2], found[0, 3] = found[0, 3], found[0, 2]
    assert any("reordered" in one or "inconsistent" in one for one in said(record, found))

    record, found = topic()
    found[0, 6] = found[0, 3]
    assert any("duplicate" in one for one in said(record, found))

    record, found = topic()
    found[0, 1] = (found[0, 1][0][:-1] + "x", "k")
    assert any("nobody sent" in one for one in said(record, found))

    record, found = topic()
    found[0, 1] = (found[0, 1][0], "other")
    assert any("under key 'other'" in one for one in said(record, found))


def test_a_payload_tells_where_it_comes_from() -> None:
    assert payload("p1", 12).endswith(" p1-12")
    assert payload("p1", 12) != payload("p2", 12)
