"""Records in the metadata store: what is read back, what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.bookies import BookieInfo, decode_service_info, encode_service_info
from octavo.metadata.cookie import Cookie, decode_cookie, encode_cookie
from octavo.metadata.embedded import EmbeddedStore
from octavo.metadata.ledger_codec import decode_ledger_metadata, encode_ledger_metadata
from octavo.metadata.ledger_ids import IDS_END, ledger_path, step_widths
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.opening import open_store
from octavo.metadata.paths import check_path, join, parents_of
from octavo.metadata.store import BadMetadataUrl, BadRecord
from octavo.metadata.topic_records import (
    NamespaceRecord,
    PartitionLedger,
    PartitionRecord,
    SubscriptionRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from octavo.metadata.topic_settings import (
    NUMBER_MAX,
    PARTITIONS_MAX,
    AutoCreate,
    Policies,
    TopicSettings,
)
from octavo.metadata.zookeeper import ZooKeeperStore
from octavo.protocol.entry import DigestType

text = st.text(max_size=12)
path = st.text(st.characters(exclude_characters="\t", exclude_categories=["Cs"]), max_size=12)

# Names


def test_a_field_that_was_renamed_is_read_and_written_by_its_key() -> None:
    stored = {
        "ledgers": [{"ledger_id": 7, "base_offset": 0, "count": 2, "spliced": True}],
        "transactions": {"q@1": 3},
        "v": 1,
    }
    record = decode_record(PartitionRecord, "a record", msgpack.packb(stored))
    assert [segment.bulk_loaded for segment in record.ledgers] == [True]
    assert record.bulk_loads == {"q@1": 3}
    written = msgpack.unpackb(encode_record(record))
    assert written["transactions"] == stored["transactions"]
    assert written["ledgers"][0]["spliced"] is True
    # An unknown name, which is kept and has no meaning.
    strange = {**stored, "bulk_loads": {"q@1": 9}, "ledgers": [], "transactions": {}}
    record = decode_record(PartitionRecord, "a record", msgpack.packb(strange))
    assert (record.bulk_loads, record.extra) == ({}, {"bulk_loads": {"q@1": 9}})
    assert msgpack.unpackb(encode_record(record))["bulk_loads"] == {"q@1": 9}
    with pytest.raises(BadRecord, match="transactions"):
        decode_record(PartitionRecord, "a record", msgpack.packb({"transactions": 3, "v": 1}))


# Cookies


@given(
    st.builds(
        Cookie,
        path,
        path,
        st.lists(path, min_size=1, max_size=3).map(tuple),
        path,
        st.lists(path, max_size=3).map(tuple),
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
    )
)
def test_a_cookie_is_read_as_written(cookie: Any) -> None:
    assert decode_cookie(encode_cookie(cookie)) == cookie


def test_a_cookie_of_apaches_is_read() -> None:
    data = (
        b'5\nbookieHost: "10.0.0.1:3181"\njournalDir: "/j"\nledgerDirs: "2\\t/l1\\t/l2"\n'
        b'instanceId: "0b3c"\n'
    )
    assert decode_cookie(data) == Cookie("10.0.0.1:3181", "/j", ("/l1", "/l2"), "0b3c")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"3\n/j\n",
        b"6\n",
        b"\xff\n",
        b"five\n",
        b'5\nbookieHost: "a"\n',
        b'5\nbookieHost: "a"\njournalDir: "j"\nledgerDirs: "3\\tone"\n',
        b'5\nbookieHost: "a"\njournalDir: "j"\nledgerDirs: "1\\tone"\nunknown: 1\n',
    ],
)
def test_what_is_no_cookie_is_a_bad_record(data: Any) -> None:
    with pytest.raises(BadRecord):
        decode_cookie(data)


@given(st.binary(max_size=80))
def test_junk_is_no_cookie(data: Any) -> None:
    for junk in (data, b"5\n" + data):
        with contextlib.suppress(BadRecord):
            decode_cookie(junk)


# Registrations


@given(
    st.builds(
        BookieInfo, text, text, st.integers(0, 65535), st.booleans(), st.dictionaries(text, text)
    )
)
def test_a_registration_is_read_as_written(info: Any) -> None:
    data = encode_service_info(info)
    assert decode_service_info(info.bookie_id, data, read_only=info.read_only) == info


def test_an_empty_registration_has_its_address_in_the_id() -> None:
    found = decode_service_info("10.0.0.1:3181", b"", read_only=False)
    assert (found.host, found.port, found.incarnation) == ("10.0.0.1", 3181, "")
    for bookie_id in ("bookie-1", "host:port", ":"):
        with pytest.raises(BadRecord, match=bookie_id):
            decode_service_info(bookie_id, b"", read_only=False)


@given(st.binary(min_size=1, max_size=60))
def test_junk_is_no_registration(data: Any) -> None:
    with contextlib.suppress(BadRecord):
        decode_service_info("b:1", data, read_only=False)


# Topic records

counts = st.integers(0, 2**63)
ledgers = st.builds(
    PartitionLedger, counts, counts, st.none() | counts, counts, counts, counts, st.none() | counts
)
topics = st.builds(
    TopicSettings,
    partitions=st.integers(1, PARTITIONS_MAX),
    rollover_bytes=st.integers(1, NUMBER_MAX),
)
records = st.one_of(
    st.builds(NamespaceRecord, counts),
    st.builds(TopicRecord, topics, counts, st.booleans()),
    st.builds(PartitionRecord, st.lists(ledgers, max_size=4).map(tuple), st.none() | counts),
    st.builds(SubscriptionRecord, text, text, st.dictionaries(counts, counts, max_size=3), counts),
)


@given(records)
def test_a_topic_record_is_read_as_written(record: Any) -> None:
    assert decode_record(type(record), "it", encode_record(record)) == record


def test_unknown_keys_are_kept_at_every_level() -> None:
    fields = {
        "v": 1,
        "ledgers": [{"ledger_id": 1, "base_offset": 0, "colour": "red"}],
        "later": {"a": [1, b"x"]},
    }
    record = decode_record(PartitionRecord, "it", msgpack.packb(fields))
    changed = dataclasses.replace(record, epoch=record.epoch + 1)
    again = msgpack.unpackb(encode_record(changed))
    assert again["later"] == {"a": [1, b"x"]}
    assert again["ledgers"][0]["colour"] == "red"
    assert again["epoch"] == 1


def test_an_unknown_key_cannot_pass_for_a_known_one() -> None:
    record = NamespaceRecord(5, extra={"created_ms": 9, "v": 7})
    known = {"v": 1, "created_ms": 5, "encrypted": False}  # unset fields are not written
    assert msgpack.unpackb(encode_record(record)) == known


def test_a_missing_field_has_its_default() -> None:
    assert decode_record(SubscriptionRecord, "it", msgpack.packb({"v": 1})) == SubscriptionRecord()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"v": 2}, "version 2"),
        ({}, "format version"),
        ({"v": "1"}, "format version"),
        ({"v": True}, "format version"),
        ([], "format version"),
        ({"v": 1, 5: 6}, "text keys"),
        ({"v": 1, "ledgers": [{"base_offset": 0}]}, "ledger_id is missing"),
        ({"v": 1, "ledgers": {}}, "ledgers"),
        ({"v": 1, "ledgers": [3]}, "map"),
        ({"v": 1, "epoch": "3"}, "epoch"),
        ({"v": 1, "epoch": True}, "epoch"),
        ({"v": 1, "epoch": None}, "epoch"),
        ({"v": 1, "state_ledger": 1.5}, "state_ledger"),
        ({"v": 1, "ledgers": None}, "ledgers"),
    ],
)
def test_what_does_not_fit_is_named(fields: Any, says: Any) -> None:
    with pytest.raises(BadRecord, match=says):
        decode_record(PartitionRecord, "it", msgpack.packb(fields))


@pytest.mark.parametrize("data", [b"\x81\x90\x00", b"\xc1", b"\x91" * 5000, b"\x80\x80"])
def test_odd_msgpack_is_a_bad_record(data: Any) -> None:
    with pytest.raises(BadRecord):
        decode_record(TopicRecord, "it", data)


@given(st.binary(max_size=60), st.sampled_from([TopicRecord, PartitionRecord, SubscriptionRecord]))
def test_junk_is_no_topic_record(data: Any, kind: Any) -> None:
    with contextlib.suppress(BadRecord):
        decode_record(kind, "it", data)


# URLs


def test_urls_name_their_store() -> None:
    embedded = open_store("file:///var/lib/octa%20vo.db", session_timeout_ms=1234)
    assert isinstance(embedded, EmbeddedStore)
    assert embedded.url == "file:///var/lib/octa vo.db"
    assert embedded.session_timeout_ms == 1234
    cluster = open_store("zk://a:1,b,[::1]:3/octavo/prod/")
    assert isinstance(cluster, ZooKeeperStore)
    assert cluster.url == "zk://a:1,b:2181,[::1]:3/octavo/prod"
    secured = open_store("zks://a:1,b,[::1]:3/octavo/prod/")
    assert isinstance(secured, ZooKeeperStore)
    assert secured.url == "zks://a:1,b:2281,[::1]:3/octavo/prod"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "octavo.db",
        "/var/lib/octavo.db",
        "zookeeper://a:1/x",
        "file://octavo.db",
        "file://host/octavo.db",
        "file:///",
        "file:///folder/",
        "file:/octavo.db",
        "zk://",
        "zk:///octavo",
        "zk://a:0/x",
        "zk://a:99999/x",
        "zk://a:x/x",
        "zk://a:1,/x",
        "zk://a b:1/x",
        "zk://a:1/x//y",
        "zk://a:1/../y",
        "zks://",
        "zks://a:x/x",
    ],
)
def test_a_wrong_url_shows_the_right_forms(url: Any) -> None:
    with pytest.raises(BadMetadataUrl) as caught:
        open_store(url)
    assert "zk://host:port" in str(caught.value)
    assert "file:///absolute/path/octavo.db" in str(caught.value)


# Paths


def test_paths_are_taken_apart() -> None:
    assert parents_of("/a/b/c") == ["/a", "/a/b"]
    assert parents_of("/a") == []
    assert check_path("/a/b") == "/a/b"
    assert join("/a", "b", "c") == "/a/b/c"
    for name in ("", ".", "..", "a/b", "\n", "\x7f"):
        with pytest.raises(AssertionError):
            join("/a", name)


def test_policies_are_written_as_far_as_something_is_said() -> None:
    said = Policies(ttl_ms=5, durability="deferred", extra={"newer": 1})
    record = NamespaceRecord(policies=said, auto_create=AutoCreate(partitions=4))
    written = msgpack.unpackb(encode_record(record))
    assert written["policies"] == {"ttl_ms": 5, "durability": "deferred", "newer": 1}
    found = decode_record(NamespaceRecord, "n", encode_record(record))
    assert (found, found.policies.extra) == (record, {"newer": 1})
    newer = NamespaceRecord(policies=Policies(extra={"newer": 1}))
    found = decode_record(NamespaceRecord, "n", encode_record(newer))
    assert found.policies.extra == {"newer": 1}, "what a newer version said is not lost"
    with pytest.raises(BadRecord, match="ttl_ms"):
        decode_record(NamespaceRecord, "n", msgpack.packb({"v": 1, "policies": {"ttl_ms": "5"}}))


# Ledger metadata: every version read, version 3 written, junk refused.
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
