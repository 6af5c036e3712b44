"""Bad input to a real cluster, over HTTP and by the command: each answer names its cause, shows
no trace, and harms nothing."""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from octavo import Client
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.records import Record, build_batch
from tests.support.kit.history import Call
from tests.support.processes.audit import Copies, problems, replica_problems
from tests.support.processes.standalone import Standalone, octavo, standalone
from tests.support.processes.users import Place, note_read, payload
from tests.support.processes.users import Record as RecordAudit

NDJSON = "application/x-ndjson"
BATCH = "application/vnd.kafka.recordbatch.v2"
EARLIER = ["acked-1", "acked-2", "acked-3"]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self, status: int) -> dict[str, Any]:
        assert self.status == status, self
        assert self.headers["content-type"] == "application/problem+json"
        assert b"Traceback" not in self.body
        assert b"File " not in self.body
        found: dict[str, Any] = json.loads(self.body)
        assert found["detail"]
        assert found["code"]
        assert found["retryable"] is (status in (503, 504, 429))
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("input") / "data"
    with standalone(folder, "--set", "broker.trim_interval_ms=100") as one:
        yield one
        logs = "".join(path.read_text() for path in (folder / "logs").iterdir())
        assert "Traceback" not in logs
        assert '"level": "error"' not in logs


def call(
    one: Standalone, method: str, path: str, body: bytes | None = None, kind: str = "text/plain"
) -> Answer:
    """Call a path exactly as written: no client normalises it."""
    url = urlsplit(one.cluster.urls[0])
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        if body is not None:
            connection.putheader("Content-Type", kind)
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        headers = {name.lower(): text for name, text in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())
    finally:
        connection.close()


@pytest.fixture
def topic(cluster: Standalone, request: pytest.FixtureRequest) -> Iterator[str]:
    """Make a topic with three messages; check after the test that they are there and it takes
    another."""
    name = request.node.originalname.removeprefix("test_")[:60]
    with Client(cluster.cluster.urls) as client:
        if name not in client.topics():
            client.create_topic(name)
            for text in EARLIER:
                client.publish(name, text)
        yield name
        client.publish(name, "after")
        found = [message.text() for message in client.messages(name)]
        assert found[:3] == EARLIER
        assert found[-1] == "after"


@pytest.mark.parametrize(
    "name", ["a%2Fb", "..", "%2e%2e", "%00", "a" * 250, "a%00b", "%2e%2e%2f%2e%2e%2fledgers"]
)
def test_topic_names(cluster: Standalone, topic: str, name: str) -> None:
    before = call(cluster, "GET", "/v1/topics/public").body
    for method, path in (
        ("PUT", f"/v1/topics/public/{name}"),
        ("PUT", f"/v1/topics/{name}/t"),
        ("POST", f"/v1/topics/public/{name}/messages"),
        ("PUT", f"/v1/topics/public/{topic}/subscriptions/{name}"),
        ("DELETE", f"/v1/topics/public/{name}"),
    ):
        problem = call(cluster, method, path, b"" if method == "POST" else None).problem(400)
        assert problem["code"] in ("invalid-name", "invalid-path")
    assert call(cluster, "GET", "/v1/topics/public").body == before


@pytest.mark.long
def test_names_by_command(cluster: Standalone) -> None:
    for name in ("../x", "a" * 250, "a\nb", "ns/../t"):
        found = octavo("topic", "create", name, "--url", cluster.cluster.urls[0])
        assert found.returncode == 2, found
        assert found.stderr.startswith("error:")
        assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{nope", 400, "not JSON"),
        (b"", 400, "JSON"),
        (b'{"value": 1', 400, "not JSON"),
        (b"\xff", 400, "not UTF-8"),
        (b"[1, 2]", 422, "object"),
        (b"[" * 100_000, 422, "object"),
    ],
    ids=["word", "empty", "cut", "bytes", "array", "deep"],
)
def test_json_that_is_not(
    cluster: Standalone, topic: str, body: bytes, status: int, says: str
) -> None:
    path = f"/v1/topics/public/{topic}/messages"
    problem = call(cluster, "POST", path, body, "application/json").problem(status)
    assert says in problem["detail"]


def test_one_bad_line(cluster: Standalone, topic: str) -> None:
    lines = [b'{"value": "line-%d"}' % n for n in range(1, 1201)]
    body = b"\n".join([*lines, b'{"value": ', b'{"value": "never"}'])
    path = f"/v1/topics/public/{topic}/messages"
    problem = call(cluster, "POST", path, body, NDJSON).problem(400)
    assert problem["line"] == 1201
    assert "line 1201" in problem["detail"]
    assert problem["stored"]["count"] == 1200
    assert problem["stored"]["last"]["offset"] == 3 + 1200 - 1
    with Client(cluster.cluster.urls) as client:
        found = [message.json() for message in client.messages(topic, start=3)]
    assert found == [f"line-{n}" for n in range(1, 1201)]


def test_one_bad_line_by_command(cluster: Standalone, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n{"n": \n{"n": 4}\n')
    url = cluster.cluster.urls[0]
    found = octavo("publish", topic, "--ndjson", "--file", str(path), "--url", url)
    assert found.returncode == 1
    assert "line 3 is not JSON" in found.stderr
    assert "Traceback" not in found.stderr


GOOD = build_batch([Record(b"k", b"v%d" % n, timestamp_ms=1) for n in range(3)])


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "checksum"),
        (GOOD[:57] + struct.pack(">i", 9) + GOOD[61:], "count"),
        (GOOD[:-4], "claims"),
        (b"", ""),
    ],
    ids=["checksum", "count", "cut", "empty"],
)
def test_damaged_record_batches(cluster: Standalone, topic: str, batch: bytes, says: str) -> None:
    path = f"/v1/topics/public/{topic}/messages"
    assert says in call(cluster, "POST", path, batch, BATCH).problem(422)["detail"]


def test_a_count_that_its_checksum_covers(cluster: Standalone, topic: str) -> None:
    import crc32c

    wrong = bytearray(GOOD[:23] + struct.pack(">i", 8) + GOOD[27:57])
    wrong += struct.pack(">i", 9) + GOOD[61:]
    wrong[17:21] = struct.pack(">I", crc32c.crc32c(bytes(wrong[21:])))
    path = f"/v1/topics/public/{topic}/messages"
    detail = call(cluster, "POST", path, bytes(wrong), BATCH).problem(422)["detail"]
    assert "9" in detail


@pytest.mark.long
def test_places_that_do_not_exist(cluster: Standalone, topic: str) -> None:
    one = f"/v1/topics/public/{topic}"
    for method in ("GET", "POST"):
        body = b"x" if method == "POST" else None
        problem = call(cluster, method, f"{one}/partitions/7/messages", body).problem(404)
        assert problem["code"] == "partition-not-found"
        assert "0 to 0" in problem["detail"]
    beyond = call(cluster, "GET", f"{one}/messages?from=4000").problem(416)
    assert beyond["next_offset"] >= 3
    assert "4000" in beyond["detail"]
    assert call(cluster, "GET", f"{one}/messages?from=-1").problem(400)
    assert call(cluster, "GET", "/v1/topics/public/nope/messages").problem(404)
    assert call(cluster, "GET", "/v1/ledgers/424242").problem(404)
    url = cluster.cluster.urls[0]
    for arguments in (
        ["consume", topic, "--partition", "7"],
        ["consume", "nope"],
        ["publish", "nope", "x"],
        ["consume", topic, "--from", "4000"],
    ):
        found = octavo(*arguments, "--url", url)
        assert found.returncode == 1, (arguments, found)
        assert found.stderr.startswith("error:"), found
        assert "Traceback" not in found.stderr


def test_trimmed_offset(cluster: Standalone) -> None:
    one = "/v1/topics/public/trimmed"
    settings = b'{"retention": {"size": "1KiB"}, "rollover": {"entries": 3}}'
    assert call(cluster, "PUT", one, settings, "application/json").status == 201
    for _ in range(20):
        assert call(cluster, "POST", f"{one}/messages", b"x" * 200).status == 200
    answer = call(cluster, "GET", f"{one}/messages?from=0")
    while answer.status == 200:
        answer = call(cluster, "GET", f"{one}/messages?from=0")
    earliest = answer.problem(410)["earliest_offset"]
    assert str(earliest) in answer.problem(410)["detail"]
    assert call(cluster, "GET", f"{one}/messages?from={earliest}").status in (200, 410)
    found = octavo("consume", "trimmed", "--from", "0", "--url", cluster.cluster.urls[0])
    assert found.returncode == 1
    assert found.stderr.startswith("error:")
    assert "earliest" in found.stderr


def test_broken_bytes_to_a_bookie(cluster: Standalone, topic: str) -> None:
    import socket

    for member in cluster.cluster.of_kind("bookie"):
        for data in (
            struct.pack(">II", 2**31 - 1, 0x02010000),
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(99),
        ):
            with socket.create_connection(("127.0.0.1", member.port), 10) as peer:
                peer.sendall(data)
                assert peer.recv(100) == b"", "the bookie hung up"


def test_bytes_that_are_not_http(cluster: Standalone, topic: str) -> None:
    import socket

    url = urlsplit(cluster.cluster.urls[0])
    with socket.create_connection((url.hostname or "", url.port or 0), 10) as peer:
        peer.sendall(bytes(range(256)) + b"\r\n\r\n")
        said = peer.recv(1 << 16)
    assert b" 400 Bad Request\r\n" in said
    assert b"Traceback" not in said


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


def topic_audit(count: int = 6) -> tuple[RecordAudit, dict[Place, tuple[str, str]]]:
    record, found = RecordAudit(), dict[Place, tuple[str, str]]()
    for number in range(count):
        text = payload("p0", number)
        record.keys[text] = "k"
        one = record.history.invoke("p0", Call.SEND, value=text, key="k")
        record.history.ok(one, number, log="0")
        found[0, number] = (text, "k")
    return record, found


def said(record: RecordAudit, found: dict[Place, tuple[str, str]]) -> list[str]:
    note_read(record, "auditor", [(place, found[place][0]) for place in sorted(found)])
    return problems(record, found)


def test_a_good_topic_is_good() -> None:
    assert said(*topic_audit()) == []


def test_what_is_wrong_with_a_topic_is_found() -> None:
    record, found = topic_audit()
    del found[0, 5]
    assert any("lost" in one or "unseen" in one for one in said(record, found))

    record, found = topic_audit()
    found[0, 2], found[0, 3] = found[0, 3], found[0, 2]
    assert any("reordered" in one or "inconsistent" in one for one in said(record, found))

    record, found = topic_audit()
    found[0, 6] = found[0, 3]
    assert any("duplicate" in one for one in said(record, found))

    record, found = topic_audit()
    found[0, 1] = (found[0, 1][0][:-1] + "x", "k")
    assert any("nobody sent" in one for one in said(record, found))

    record, found = topic_audit()
    found[0, 1] = (found[0, 1][0], "other")
    assert any("under key 'other'" in one for one in said(record, found))


def test_a_payload_tells_where_it_comes_from() -> None:
    assert payload("p1", 12).endswith(" p1-12")
    assert payload("p1", 12) != payload("p2", 12)
