"""Publishing over real HTTP into a broker core in memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from octavo.broker.errors import PartitionUnavailable, SchemaMismatch
from octavo.protocol.records import Record, build_batch, partition_for
from tests.support.http_api import until
from tests.support.memory_cluster import Running

BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"
ONE = "/v1/topics/public/one"
FOUR = "/v1/topics/public/four"


@pytest.fixture(autouse=True)
async def topics(one: Running) -> None:
    assert (await one.api.put(ONE)).status == 201
    assert (await one.api.put(FOUR, json={"partitions": 4})).status == 201


async def messages(one: Running, path: str = ONE) -> list[dict[str, Any]]:
    found = await one.api.get(path + "/messages?limit=10000&max_bytes=8000000")
    return found.json()["messages"] if found.status == 200 else []


async def test_raw_body_is_one_message(one: Running) -> None:
    answer = await one.api.post(
        ONE + "/messages",
        b"first message",
        "text/plain",
        headers={"Octavo-Key": "k", "Octavo-Header-Origin": "EWR", "Octavo-Timestamp": "5"},
    )
    assert answer.status == 200, answer
    place = {"partition": 0, "offset": 0, "id": "0:0:0"}
    assert answer.json() == {"count": 1, "first": place, "last": place}
    assert answer.headers["Octavo-Owner"] == one.api.url
    [found] = await messages(one)
    assert found["key"] == "k"
    assert found["value_text"] == "first message"
    assert found["headers"] == {"origin": "EWR"}
    assert found["timestamp"] == 5


async def test_one_json_object_and_several(one: Running) -> None:
    assert (await one.api.post(ONE + "/messages", json={"value": {"a": 1}})).status == 200
    answer = await one.api.post(
        ONE + "/messages",
        json={"messages": [{"value": n, "key": "x"} for n in range(3)]},
    )
    assert answer.json()["count"] == 3
    assert answer.json()["first"]["offset"] == 1
    assert answer.json()["last"] == {"partition": 0, "offset": 3, "id": "0:1:2"}
    assert [m["value"] for m in await messages(one)] == [{"a": 1}, 0, 1, 2]


async def test_values_are_stored_byte_for_byte(one: Running) -> None:
    text = '{"n": 12345678901234567890123, "x": 1.10, "s": "\\u00e9 é"}'
    await one.api.post(ONE + "/messages", f'{{"value":{text}}}'.encode(), "application/json")
    [stored] = (await one.records("one")).values()
    assert stored[1].value == text.encode()
    answer = await one.api.get(ONE + "/messages")
    assert text.encode() in answer.body


async def test_null_missing_and_both_values(one: Running) -> None:
    assert (await one.api.post(ONE + "/messages", json={"value": None})).status == 200
    [found] = await messages(one)
    assert found["value"] is None
    assert next(iter((await one.records("one")).values()))[1].value is None
    for body in ({"key": "a"}, {"value": 1, "value_base64": "AA=="}, {"vaule": 1}, {}):
        answer = await one.api.post(ONE + "/messages", json=body)
        assert answer.status == 422, answer
        assert answer.json()["code"] == "invalid-message"
        assert "value" in answer.json()["detail"]
    assert len(await messages(one)) == 1


async def test_ndjson_keeps_order_per_key_over_partitions(one: Running) -> None:
    lines = [{"key": f"k{n % 7}", "value": n} for n in range(5000)]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    answer = await one.api.post(FOUR + "/messages", body, NDJSON)
    assert answer.status == 200, answer
    assert answer.json()["count"] == 5000
    assert sum(p["count"] for p in answer.json()["partitions"]) == 5000
    seen: dict[str, list[int]] = {}
    for number in range(4):
        for message in await messages(one, f"{FOUR}/partitions/{number}"):
            assert partition_for(message["key"].encode(), 4) == number
            seen.setdefault(message["key"], []).append(message["value"])
    assert seen == {f"k{k}": list(range(k, 5000, 7)) for k in range(7)}


async def test_messages_without_key_are_spread(one: Running) -> None:
    body = b'{"value":1}\n' * 8000
    assert (await one.api.post(FOUR + "/messages", body, NDJSON)).json()["count"] == 8000
    counts = [one.next_offset("four", n) for n in range(4)]
    assert counts == [2000] * 4
    for _ in range(4):
        await one.api.post(FOUR + "/messages", b"x", "text/plain")
    assert [one.next_offset("four", n) - 2000 for n in range(4)] == [1] * 4


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
async def test_blank_lines_and_endings(one: Running, ending: bytes) -> None:
    body = ending.join([b'{"value":1}', b"", b'{"value":2}', b"  "])
    assert (await one.api.post(ONE + "/messages", body, NDJSON)).json()["count"] == 2


@pytest.mark.parametrize(
    ("bad", "status", "says"),
    [
        (b'{"value": nope}', 400, "not JSON"),
        (b'{"value": 1', 400, "not JSON"),
        (b'{"value": 1}{"value": 2}', 400, "trailing"),
        (b'{"value": "\xff"}', 400, "UTF-8"),
        (b"[1]", 422, "object"),
        (b'{"key": 5, "value": 1}', 422, "key"),
        (b'{"key": "only"}', 422, "neither value"),
        (b'{"value": 1, "timestamp": "2013-01-01T00:00:00"}', 422, "time zone"),
        (b'{"value": 1, "timestamp": 1700000000000000000}', 422, "milliseconds"),
        (b'{"value_base64": "!"}', 422, "base64"),
        (b'{"value": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, "deep"),
    ],
)
async def test_one_bad_line_is_named_and_what_was_stored(
    one: Running, bad: bytes, status: int, says: str
) -> None:
    good = [b'{"key":"k","value":%d}' % n for n in range(2500)]
    body = b"\n".join([*good, bad, b'{"value":"after"}'])
    answer = await one.api.post(FOUR + "/messages", body, NDJSON)
    assert answer.status == status, answer
    problem = answer.json()
    assert problem["line"] == 2501
    assert says in problem["detail"]
    assert "line 2501" in problem["detail"]
    assert problem["stored"]["count"] == 2500
    assert problem["stored"]["last"]["offset"] == 2499
    assert one.next_offset("four", partition_for(b"k", 4)) == 2500
    assert sum(one.next_offset("four", n) for n in range(4)) == 2500


async def test_bad_json_message_stores_nothing(one: Running) -> None:
    answer = await one.api.post(ONE + "/messages", json={"messages": [{"value": 1}, {"key": "a"}]})
    assert answer.status == 422
    assert answer.json()["index"] == 1
    assert "messages[1]" in answer.json()["detail"]
    answer = await one.api.post(ONE + "/messages", b"{nope", "application/json")
    assert answer.status == 400
    answer = await one.api.post(ONE + "/messages", json={"messages": []})
    assert answer.status == 422
    assert one.next_offset("one") == 0


async def test_record_batch_is_stored_as_it_is(one: Running) -> None:
    batch = build_batch([Record(b"k", b"v%d" % n, timestamp_ms=9) for n in range(5)])
    answer = await one.api.post(ONE + "/messages", batch, BATCH)
    assert answer.status == 200, answer
    assert answer.json()["count"] == 5
    assert answer.json()["last"]["offset"] == 4
    found = await one.api.get(ONE + "/messages", headers={"Accept": BATCH})
    assert found.body[16:] == batch[16:]  # all but base offset and leader epoch
    assert found.headers["Next-Offset"] == "5"
    answer = await one.api.post(ONE + "/messages", batch + batch, BATCH)
    assert answer.json()["count"] == 10
    assert one.next_offset("one") == 15


async def test_damaged_record_batches(one: Running) -> None:
    batch = build_batch([Record(None, b"value")])
    wrong_crc = batch[:-1] + bytes([batch[-1] ^ 1])
    wrong_count = batch[:57] + b"\0\0\0\x09" + batch[61:]
    for body, says in (
        (wrong_crc, "checksum"),
        (wrong_count, "count"),
        (batch[:40], "61"),
        (batch[:-3], "claims"),
        (batch + b"trailing", "61"),
        (batch[:16] + b"\x01" + batch[17:], "magic"),
        (b"", ""),
    ):
        answer = await one.api.post(ONE + "/messages", body, BATCH)
        assert answer.status == 422, answer
        assert says in answer.json()["detail"]
    assert one.next_offset("one") == 0


async def test_record_batch_for_a_topic_with_partitions_names_one(one: Running) -> None:
    batch = build_batch([Record(b"k", b"v")])
    answer = await one.api.post(FOUR + "/messages", batch, BATCH)
    assert answer.status == 422
    assert answer.json()["code"] == "partition-required"
    assert answer.json()["partitions"] == 4
    answer = await one.api.post(FOUR + "/partitions/2/messages", batch, BATCH)
    assert answer.json()["first"]["partition"] == 2


async def test_results_all(one: Running) -> None:
    body = b"\n".join(b'{"key":"k%d","value":%d}' % (n % 3, n) for n in range(10))
    answer = await one.api.post(FOUR + "/messages?results=all", body, NDJSON)
    results = answer.json()["results"]
    assert len(results) == 10
    for n, result in enumerate(results):
        assert result["partition"] == partition_for(b"k%d" % (n % 3), 4)
        records = await one.records("four", result["partition"])
        assert records[result["offset"]][1].value == b"%d" % n
        assert str(records[result["offset"]][0]) == result["id"]


async def test_idempotent_publish(one: Running) -> None:
    def producer(epoch: int, sequence: int) -> dict[str, str]:
        return {"Producer-Id": "me", "Producer-Epoch": str(epoch), "Producer-Seq": str(sequence)}

    body = {"messages": [{"value": n} for n in range(3)]}
    path = ONE + "/messages"
    assert (await one.api.post(path, json=body, headers=producer(0, 0))).status == 200
    repeated = await one.api.post(path, json=body, headers=producer(0, 0))
    assert repeated.status == 204
    assert repeated.headers["Next-Offset"] == "3"
    gap = await one.api.post(path, json=body, headers=producer(0, 7))
    assert gap.status == 409
    assert gap.json()["expected_sequence"] == 3
    assert gap.headers["Producer-Expected-Seq"] == "3"
    assert (await one.api.post(path, json=body, headers=producer(1, 0))).status == 200
    stale = await one.api.post(path, json=body, headers=producer(0, 3))
    assert stale.status == 403
    assert one.next_offset("one") == 6


async def test_a_repeated_stream_makes_the_same_batches(one: Running) -> None:
    lines = [b'{"value":"%s"}\n' % (b"x" * (n % 300)) for n in range(3000)]
    headers = {"Producer-Id": "77", "Producer-Epoch": "0", "Producer-Seq": "0"}

    async def pieces(size: int):
        body = b"".join(lines)
        for at in range(0, len(body), size):
            yield body[at : at + size]
            await asyncio.sleep(0)

    path = ONE + "/messages"
    first = await one.api.post(path, pieces(50_000), NDJSON, headers=dict(headers))
    assert first.json()["count"] == 3000
    again = await one.api.post(path, pieces(7_777), NDJSON, headers=dict(headers))
    assert again.status == 204, again
    assert one.next_offset("one") == 3000


async def test_idempotence_needs_one_partition(one: Running) -> None:
    headers = {"Producer-Id": "1", "Producer-Epoch": "0", "Producer-Seq": "0"}
    assert partition_for(b"a", 4) != partition_for(b"c", 4)
    for body, kind in (
        (b'{"value":1,"key":"a"}', NDJSON),
        (b'{"value":1}', "application/json"),
        (b'{"messages":[{"value":1,"key":"a"},{"value":1,"key":"c"}]}', "application/json"),
        (b"raw", "text/plain"),
    ):
        answer = await one.api.post(FOUR + "/messages", body, kind, headers=dict(headers))
        assert answer.status == 422, answer
        assert answer.json()["code"] == "partition-required"
    keyed = {**headers, "Octavo-Key": "a"}
    answer = await one.api.post(FOUR + "/messages", b"raw", "text/plain", headers=keyed)
    assert answer.json()["first"]["partition"] == partition_for(b"a", 4)
    answer = await one.api.post(FOUR + "/messages", b"raw", "text/plain", headers=dict(keyed))
    assert answer.status == 204


async def test_producer_headers_are_all_or_none(one: Running) -> None:
    answer = await one.api.post(
        ONE + "/messages", b"x", "text/plain", headers={"Producer-Id": "1", "Producer-Seq": "0"}
    )
    assert answer.status == 400
    assert "Producer-Epoch" in answer.json()["detail"]
    for name, value in (("Epoch", "70000"), ("Seq", "-1"), ("Epoch", "x"), ("Seq", "2147483648")):
        headers = {"Producer-Id": "1", "Producer-Epoch": "0", "Producer-Seq": "0"}
        headers[f"Producer-{name}"] = value
        answer = await one.api.post(ONE + "/messages", b"x", "text/plain", headers=headers)
        assert answer.status == 400, answer
        assert f"Producer-{name}" in answer.json()["detail"]


async def test_if_match(one: Running) -> None:
    path = ONE + "/messages"
    answer = await one.api.post(path, b"a", "text/plain", headers={"If-Match": '"0"'})
    assert answer.status == 200
    answer = await one.api.post(path, b"b", "text/plain", headers={"If-Match": '"0"'})
    assert answer.status == 412
    assert answer.json()["next_offset"] == 1
    answer = await one.api.post(path, b"b", "text/plain", headers={"If-Match": "soon"})
    assert answer.status == 400
    body = b'{"value":1}\n' * 2500  # several batches, each at the offset that follows
    answer = await one.api.post(path, body, NDJSON, headers={"If-Match": '"1"'})
    assert answer.json()["count"] == 2500


@pytest.mark.parametrize(
    "kind",
    ["multipart/form-data; boundary=x", "application/vnd.kafka.json.v2+json", "multipart/mixed"],
)
async def test_types_that_are_not_understood(one: Running, kind: str) -> None:
    answer = await one.api.post(ONE + "/messages", b"x", kind)
    assert answer.status == 415
    assert NDJSON in answer.json()["detail"]
    assert BATCH in answer.json()["detail"]
    answer = await one.api.post(
        ONE + "/messages", b"x", "text/plain", headers={"Content-Encoding": "zstd"}
    )
    assert answer.status == 415


async def test_gzip_is_unpacked(one: Running) -> None:
    import gzip

    body = gzip.compress(b'{"value":1}\n' * 10_000)
    answer = await one.api.post(
        ONE + "/messages", body, NDJSON, headers={"Content-Encoding": "gzip"}
    )
    assert answer.json()["count"] == 10_000
    answer = await one.api.post(
        ONE + "/messages", b"no gzip", NDJSON, headers={"Content-Encoding": "gzip"}
    )
    assert answer.status == 400, answer


async def test_partial_failure_is_207(one: Running) -> None:
    """One partition refuses, the others store: the answer says which, and how much."""
    bad = partition_for(b"a", 4)
    good = next(k for k in (b"b", b"c", b"d", b"e", b"f") if partition_for(k, 4) != bad)

    def refuse() -> None:
        raise PartitionUnavailable("1 bookie is up, 2 are needed")

    await one.before_publish("four", refuse, bad)
    await one.partition("four", partition_for(good, 4))
    body = {"messages": [{"key": "a", "value": 1}, {"key": good.decode(), "value": 2}]}
    answer = await one.api.post(FOUR + "/messages?results=all", json=body)
    assert answer.status == 207, answer
    found = answer.json()
    assert found["count"] == 1
    assert found["not_confirmed"] == 1
    assert found["errors"][0]["code"] == "partition-unavailable"
    assert [result["status"] for result in found["results"]] == [503, 200]
    answer = await one.api.post(FOUR + "/messages", json=body["messages"][0])
    assert answer.status == 503
    assert answer.headers["Retry-After"]
    assert "bookie" in answer.json()["detail"]


async def test_a_message_that_was_not_sent_hides_no_cause(one: Running) -> None:
    """The answer was 503 `not-sent`, to be repeated, where a later message is refused for good."""
    bad = partition_for(b"a", 4)
    first = next(k for k in (b"b", b"c", b"d", b"e", b"f") if partition_for(k, 4) != bad)

    def refuse() -> None:
        raise SchemaMismatch("the message was not stored: it does not fit", 0)

    await one.before_publish("four", refuse, bad)
    # The partition of the first message is not open yet, so the second message fails earlier.
    body = {"messages": [{"key": first.decode(), "value": 1}, {"key": "a", "value": 2}]}
    answer = await one.api.post(FOUR + "/messages?results=all", json=body)
    assert (answer.status, answer.json()["code"]) == (422, "schema-mismatch"), answer
    assert answer.json()["retryable"] is False
    assert one.next_offset("four", partition_for(first, 4)) == 0


async def test_a_stream_that_pauses_is_published_as_far_as_it_came(one: Running) -> None:
    """`tail -f | curl -T -`: no need to wait until a batch is full."""

    async def lines():
        for n in range(3):
            yield b'{"value":%d}\n{"value":"half' % n
            await until(lambda n=n: one.next_offset("one") == 2 * n + 1)
            yield b' of it"}\n'
            await until(lambda n=n: one.next_offset("one") == 2 * n + 2)

    answer = await one.api.post(ONE + "/messages", lines(), NDJSON)
    assert answer.json()["count"] == 6
    values = [message["value"] for message in await messages(one)]
    assert values == [0, "half of it", 1, "half of it", 2, "half of it"]


async def test_an_answer_about_nothing_names_the_owner(two: Running) -> None:
    """The called broker named itself as the owner when no line had a message."""
    assert (await two.api.put(ONE)).status == 201
    await two.api.post(f"{ONE}/messages", b"x", "text/plain")
    answers = [await api.post(f"{ONE}/messages", b"\n\n", NDJSON) for api in two.apis]
    assert {answer.status for answer in answers} == {200}
    assert {answer.headers["Octavo-Owner"] for answer in answers} == {two.apis[0].url}
