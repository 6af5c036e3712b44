"""Ledger metadata: every version read, version 3 written, junk refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.ledger_codec import decode_ledger_metadata, encode_ledger_metadata
from octavo.metadata.ledger_ids import IDS_END, ledger_path, step_widths
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.store import BadRecord
from octavo.protocol.entry import DigestType

names = st.text(st.characters(min_codepoint=33, max_codepoint=0xFFF), min_size=1, max_size=12)
int64 = st.integers(0, 2**63 - 1)


@st.composite
def metadata(draw):
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**63 - 1), max_size=4)))]
    ensemble = st.lists(names, min_size=size, max_size=size, unique=True).map(tuple)
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=draw(int64),
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        fragments=tuple(Fragment(first, draw(ensemble)) for first in firsts),
        state=state,
        last_entry=draw(st.integers(-1, 2**63 - 1)) if closed else -1,
        length=draw(int64) if closed else 0,
        digest_type=draw(st.sampled_from(DigestType)),
        password=draw(st.binary(max_size=20)),
        created_ms=draw(int64),
        custom=draw(st.dictionaries(names, st.binary(max_size=20), max_size=3)),
        creator_token=draw(st.integers(-(2**63), 2**63 - 1)),
    )


@given(metadata())
def test_what_is_written_is_read(given_metadata: Any) -> None:
    data = encode_ledger_metadata(given_metadata)
    assert data.startswith(b"BookieMetadataFormatVersion\t3\n")
    assert decode_ledger_metadata(given_metadata.ledger_id, data) == given_metadata


@given(st.binary(max_size=200), st.sampled_from([b"", b"1\n", b"2\n", b"3\n", b"4\n", b"3"]))
def test_junk_is_a_bad_record_and_nothing_else(junk: Any, version: Any) -> None:
    head = b"BookieMetadataFormatVersion\t" + version if version else b""
    with contextlib.suppress(BadRecord):
        decode_ledger_metadata(1, head + junk)


@given(metadata(), st.data())
def test_damage_is_a_bad_record_or_another_valid_one(given_metadata: Any, data: Any) -> None:
    good = bytearray(encode_ledger_metadata(given_metadata))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadRecord):
        decode_ledger_metadata(1, bytes(good))


@given(metadata(), st.data())
def test_a_record_cut_short_or_too_long_is_bad(given_metadata: Any, data: Any) -> None:
    good = encode_ledger_metadata(given_metadata)
    cut = data.draw(st.integers(0, len(good) - 1))
    for wrong in (good[:cut], good + b"\0"):
        with pytest.raises(BadRecord):
            decode_ledger_metadata(1, wrong)


V2 = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 42
lastEntryId: 9
state: CLOSED
segment {
  ensembleMember: "10.0.0.1:3181"
  ensembleMember: "10.0.0.2:3181"
  ensembleMember: "10.0.0.3:3181"
  firstEntryId: 0
}
digestType: HMAC
password: "secret"
ackQuorumSize: 2
"""


def test_version_2_is_read() -> None:
    found = decode_ledger_metadata(3, V2)
    assert found == LedgerMetadata(
        3,
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        fragments=(Fragment(0, ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")),),
        state=LedgerState.CLOSED,
        last_entry=9,
        length=42,
        digest_type=DigestType.HMAC,
        password=b"secret",
    )


@pytest.mark.parametrize(
    ("last", "state", "last_entry", "length"),
    [
        (b"", LedgerState.OPEN, -1, 0),
        (b"-102\tCLOSED\n", LedgerState.IN_RECOVERY, -1, 0),
        (b"17\tCLOSED\n", LedgerState.CLOSED, 17, 99),
    ],
)
def test_version_1_is_read(last: Any, state: Any, last_entry: Any, length: Any) -> None:
    data = b"BookieMetadataFormatVersion\t1\n2\n3\n99\n0\ta:1\tb:1\tc:1\n5\ta:1\tb:1\td:1\n" + last
    found = decode_ledger_metadata(3, data)
    assert (found.state, found.last_entry, found.length) == (state, last_entry, length)
    assert (found.write_quorum, found.ack_quorum) == (2, 2)
    assert found.digest_type is DigestType.CRC32
    assert found.fragments[1] == Fragment(5, ("a:1", "b:1", "d:1"))


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        (b"quorumSize: 2", b"quorumSize: 4", "E >= Qw >= Qa"),
        (b"ackQuorumSize: 2", b"ackQuorumSize: 0", "E >= Qw >= Qa"),
        (b"firstEntryId: 0", b"firstEntryId: 1", "ascending"),
        (b"10.0.0.2:3181", b"10.0.0.1:3181", "distinct"),
        (b"lastEntryId: 9\n", b"", "closed at"),
        (b"lastEntryId: 9", b"lastEntryId: -5", "closed at"),
        (b"length: 42", b"length: -1", "closed at"),
        (b"state: CLOSED", b"state: BROKEN", "text"),
        (b"\t2\n", b"\t7\n", "versions 1 to 3"),
        (b"BookieMetadata", b"Bookie", "does not begin"),
    ],
)
def test_what_cannot_be_is_named(was: Any, now: Any, says: Any) -> None:
    assert was in V2
    with pytest.raises(BadRecord, match=says):
        decode_ledger_metadata(3, V2.replace(was, now, 1))


@given(st.integers(0, IDS_END - 1))
def test_paths_differ_and_can_be_read_back(ledger_id: Any) -> None:
    path = ledger_path("/ledgers", ledger_id)
    steps = path.removeprefix("/ledgers/").split("/")
    assert steps[-1].startswith("L")
    assert int("".join(steps[:-1]) + steps[-1][1:]) == ledger_id
    assert step_widths(steps[0]) == tuple(len(step.removeprefix("L")) for step in steps)


def test_other_folders_hold_no_ledgers() -> None:
    for name in ("cookies", "available", "idgen", "1", "1234", "٣٣", "LAYOUT", ""):
        assert step_widths(name) is None
