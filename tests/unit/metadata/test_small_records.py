"""Cookies, registrations, topic records, URLs, paths: what is read back, what is refused."""

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
