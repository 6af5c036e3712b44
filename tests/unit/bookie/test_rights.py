"""The right that each operation of a bookie needs, and the callers that have it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.bookie.wire.rights import (
    EXTENSION_NEEDS,
    STRANGER,
    V2_NEEDS,
    V3_NEEDS,
    Need,
    Rights,
    asked,
    reader_of,
    rights_of,
)
from octavo.protocol import extension, frames, v3
from octavo.protocol.entry import ENTRY_MAX, WHOLE, EntryRange
from octavo.protocol.frames import BatchReadRequest, Flag, ReadRequest

LEDGER, OTHER = 7, 8


def read(ledger_id: int, flags: int = 0) -> ReadRequest:
    return ReadRequest(flags, ledger_id, 0, b"")


def batch_read(ledger_id: int, flags: int = 0) -> BatchReadRequest:
    return BatchReadRequest(flags, ledger_id, 0, 1, 1, 1, b"")


def ask(op: extension.Op, **body: Any) -> extension.Request:
    return extension.Request(op, 1, body)


def call(op: int, name: str = "", ledger_id: int = LEDGER) -> v3.Call:
    body: Any = SimpleNamespace(**{name: SimpleNamespace(ledgerId=ledger_id)} if name else {})
    return v3.Call(b"", op, v3.VERSION, body)


V3_CALLS = {
    v3.Op.WRITE_LAC: "writeLacRequest",
    v3.Op.READ_LAC: "readLacRequest",
    v3.Op.FORCE: "forceLedgerRequest",
    v3.Op.LIST_ENTRIES: "getListOfEntriesOfLedgerRequest",
}


@pytest.mark.parametrize(
    ("table", "ops"),
    [(V2_NEEDS, frames.Op), (V3_NEEDS, v3.Op), (EXTENSION_NEEDS, extension.Op)],
    ids=["v2", "v3", "extension"],
)
def test_every_operation_of_every_family_has_a_rule(table: Any, ops: Any) -> None:
    assert set(table) == set(ops), "an operation without a rule: say what it needs"


def test_only_what_says_who_one_is_needs_nothing() -> None:
    assert [op for op in frames.Op if V2_NEEDS[op] is Need.NOTHING] == [frames.Op.AUTH]
    assert [op for op in v3.Op if V3_NEEDS[op] is Need.NOTHING] == [v3.Op.AUTH, v3.Op.START_TLS]
    # An answer: a caller that sends it breaks the protocol, and is cut off.
    assert [op for op in extension.Op if EXTENSION_NEEDS[op] is Need.NOTHING] == [
        extension.Op.ADDED
    ]


def every_request(ledger_id: int, flags: int = 0) -> list[Any]:
    found: list[Any] = [read(ledger_id, flags), batch_read(ledger_id, flags)]
    found.append(v3.Read(b"", flags, ledger_id, 0, b""))
    found += [ask(op, ledger=ledger_id) for op in extension.Op if op is not extension.Op.ADDED]
    calls = set(v3.Op) - {v3.Op.READ, v3.Op.ADD}  # these two need a right to their ledger
    found += [call(op, V3_CALLS.get(op, ""), ledger_id) for op in sorted(calls)]
    return found


def test_a_stranger_may_do_nothing() -> None:
    allowed = [one for one in every_request(LEDGER) if STRANGER.allow(one)]
    assert [one.op for one in allowed] == [v3.Op.AUTH, v3.Op.START_TLS]
    assert not STRANGER.may_write


def test_a_reader_may_read_its_ledgers_and_nothing_else() -> None:
    rights = reader_of({LEDGER: WHOLE})
    free = (Need.NOTHING, Need.KNOWN)
    assert not rights.may_write
    for request in every_request(LEDGER):
        assert rights.allow(request) == (asked(request)[0] in (*free, Need.READ)), request
    for request in every_request(OTHER):
        assert rights.allow(request) == (asked(request)[0] in free), request
    for flag in (Flag.FENCE, Flag.RECOVERY_ADD, Flag.HIGH_PRIORITY):
        for request in every_request(LEDGER, int(flag))[:3]:
            assert not rights.allow(request), request


@pytest.mark.parametrize("ledger", [None, "7", 7.0, True, [7], {"a": 1}, b"7"])
def test_a_ledger_that_is_no_number_is_nobodys(ledger: Any) -> None:
    assert not reader_of({1: WHOLE, LEDGER: WHOLE}).allow(ask(extension.Op.READ_LAC, ledger=ledger))
    assert not reader_of({1: WHOLE, LEDGER: WHOLE}).allow(ask(extension.Op.READ_LAC))


def test_an_operation_of_v3_that_nobody_knows_needs_most() -> None:
    assert asked(call(99)) == (Need.ADMIN, None)
    everything_but_that = rights_of(Need.READ, Need.WRITE)
    assert everything_but_that is not None
    assert not everything_but_that.allow(call(99))


def test_a_rule_about_bookies_gives_what_it_says() -> None:
    reads, writes = rights_of(Need.READ), rights_of(Need.READ, Need.WRITE)
    assert reads is not None
    assert writes is not None
    assert reads.allow(read(OTHER))
    assert not reads.allow(read(OTHER, int(Flag.FENCE)))
    assert not reads.may_write
    assert writes.may_write
    assert writes.allow(read(OTHER, int(Flag.FENCE)))
    assert not writes.allow(ask(extension.Op.FETCH_COPIES))
    assert rights_of(Need.READ, Need.WRITE, Need.ADMIN) is None
    assert rights_of() == STRANGER


def test_who_lost_nothing_is_left_alone() -> None:
    reads = reader_of({LEDGER: WHOLE})
    assert reads.covers(reads)
    assert reads.covers(STRANGER)
    assert reader_of({LEDGER: WHOLE, OTHER: WHOLE}).covers(reads)
    assert not reader_of({OTHER: WHOLE}).covers(reads)
    assert not STRANGER.covers(reads)
    assert not reads.covers(None)
    all_ledgers = rights_of(Need.READ)
    assert all_ledgers is not None
    assert all_ledgers.covers(reads)
    assert not reads.covers(all_ledgers)
    assert Rights(frozenset(Need)).covers(all_ledgers)


FROM, UPTO = 3, 6
PART = reader_of({LEDGER: EntryRange(FROM, UPTO), OTHER: WHOLE})


@pytest.mark.parametrize("entry_id", [-1, 0, FROM - 1, FROM, FROM + 1, UPTO, UPTO + 1, ENTRY_MAX])
@pytest.mark.parametrize("make", ["v2", "v3", "v3 poll", "v3 entry behind the LAC", "WAIT_LAC"])
def test_an_entry_outside_a_part_is_read_in_no_way(make: str, entry_id: int) -> None:
    """A fork's token read the source's later entries, because it named the shared ledger."""
    before = entry_id - 1
    request: Any = {
        "v2": read(LEDGER)._replace(entry_id=entry_id),
        "v3": v3.Read(b"", 0, LEDGER, entry_id, b""),
        "v3 poll": v3.Read(b"", 0, LEDGER, entry_id, b"", before, 1000),
        "v3 entry behind the LAC": v3.Read(b"", 0, LEDGER, -1, b"", before, 1000, piggyback=True),
        "WAIT_LAC": ask(extension.Op.WAIT_LAC, ledger=LEDGER, after=before, entry=True),
    }[make]
    assert PART.allow(request) == (FROM <= entry_id <= UPTO)


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("count", [-1, 0, 1, 2, 4, 5, 100, 2**31 - 1])
def test_a_batch_read_ends_where_the_part_ends(start: int, count: int) -> None:
    found = PART.narrowed(BatchReadRequest(0, LEDGER, start, 1, count, 1 << 20, b""))
    if not FROM <= start <= UPTO:
        assert found is None
        return
    assert found is not None
    most = UPTO - start + 1
    assert found.count_max == (min(count, most) if count > 0 else most)


def test_a_part_without_an_end_bounds_the_beginning_alone() -> None:
    rights = reader_of({LEDGER: EntryRange(FROM)})
    assert not rights.allow(read(LEDGER)._replace(entry_id=FROM - 1))
    assert rights.allow(read(LEDGER)._replace(entry_id=10**12))
    found = rights.narrowed(BatchReadRequest(0, LEDGER, FROM, 1, 0, 1 << 20, b""))
    assert found is not None
    assert found.count_max == 2**31 - 1


def test_of_a_part_no_operation_tells_the_rest() -> None:
    """A request that is allowed on a part returns no more than that part."""
    for request in every_request(LEDGER):
        found = PART.narrowed(request)
        if found is None or asked(request)[0] is not Need.READ:
            continue
        assert isinstance(found, extension.Request), found
        assert found.op is extension.Op.READ_LAC
        assert found.within == EntryRange(FROM, UPTO)
    for request in every_request(OTHER):  # for a whole ledger nothing is narrowed
        if asked(request)[0] is Need.READ:
            assert PART.narrowed(request) is request
    assert PART.narrowed(ask(extension.Op.WAIT_LAC, ledger=LEDGER, after=UPTO)) is None
    assert PART.narrowed(ask(extension.Op.WAIT_LAC, ledger=LEDGER, after="3")) is None


def test_a_part_that_shrinks_is_a_right_that_was_lost() -> None:
    for ledgers, covers in (
        ({LEDGER: WHOLE, OTHER: WHOLE}, True),
        ({LEDGER: EntryRange(FROM, UPTO), OTHER: WHOLE}, True),
        ({LEDGER: EntryRange(FROM + 1, UPTO), OTHER: WHOLE}, False),
        ({LEDGER: EntryRange(FROM, UPTO - 1), OTHER: WHOLE}, False),
        ({LEDGER: EntryRange(FROM, UPTO)}, False),
        ({OTHER: WHOLE}, False),
    ):
        assert reader_of(ledgers).covers(PART) == covers, ledgers
