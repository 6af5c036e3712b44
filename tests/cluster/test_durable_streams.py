"""Durable streams over real brokers, ledgers and bookies."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncClient, Client, Conflict, InvalidCall, NotFound, TopicReplaced, Trimmed
from octavo.broker.cluster.forks import Forks
from octavo.broker.cluster.topics import Topics
from octavo.broker.errors import PartitionMoving, TopicExists, TopicNotFound
from octavo.broker.http.api import durable_streams
from octavo.broker.http.api.durable_streams import WORD_BYTES_MAX
from octavo.broker.state.stream import Append, StreamConfig
from octavo.broker.types import PartitionName, TopicInfo, TopicName
from octavo.client.durable import AsyncStream, StreamPart
from octavo.client.errors import ApiError, Unreachable
from octavo.client.wire import Body, HttpWire, NoAnswer, Reply, Streamed
from octavo.protocol.records import Record
from tests.cluster.test_broker_bulk_loads import private
from tests.support.cluster import Cluster, make_topic, owned, running_cluster

S = "/v1/durable-streams/public/s"
JSON = "application/json"
TEXT = "text/plain"
PARTITION = "/v1/topics/public/s/partitions/0"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        yield found


async def put(
    cluster: Cluster, kind: str = TEXT, body: bytes = b"", path: str = S, **more: Any
) -> Any:
    return await cluster.api.call(
        "PUT", path, data=body, headers={"Content-Type": kind, **_headers(more)}
    )


async def post(cluster: Cluster, body: bytes, kind: str = TEXT, path: str = S, **more: Any) -> Any:
    headers = {"Content-Type": kind} if kind else {}
    return await cluster.api.call("POST", path, data=body, headers={**headers, **_headers(more)})


async def get(cluster: Cluster, query: str = "", path: str = S, **more: Any) -> Any:
    return await cluster.api.call("GET", path + query, headers=_headers(more))


def _headers(words: dict[str, Any]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in words.items()}


def at(offset: int) -> str:
    return f"{0:016d}_{offset:016d}"


async def test_made_appended_to_read_and_deleted(cluster: Cluster) -> None:
    made = await put(cluster, body=b"one")
    assert made.status == 201, made
    assert made.headers["Location"].endswith(S)
    assert made.headers["Stream-Next-Offset"] == at(1)
    assert (await put(cluster, body=b"one")).status == 200
    assert (await put(cluster, JSON)).status == 409
    assert (await put(cluster, Stream_Closed="true")).status == 409
    more = await post(cluster, b" two")
    assert (more.status, more.headers["Stream-Next-Offset"]) == (204, at(2))
    whole = await get(cluster)
    assert (whole.status, whole.body) == (200, b"one two")
    assert whole.headers["Content-Type"] == TEXT
    assert whole.headers["Stream-Next-Offset"] == at(2)
    assert whole.headers["Stream-Up-To-Date"] == "true"
    rest = await get(cluster, f"?offset={at(1)}&unknown=yes")
    assert rest.body == b" two"
    end = await get(cluster, f"?offset={at(2)}")
    assert (end.status, end.body, end.headers["Stream-Up-To-Date"]) == (200, b"", "true")
    assert (await get(cluster, f"?offset={at(3)}")).status == 400
    same = await get(cluster, If_None_Match=whole.headers["ETag"])
    assert same.status == 304
    head = await cluster.api.call("HEAD", S)
    assert (head.status, head.headers["Stream-Next-Offset"]) == (200, at(2))
    assert head.headers["Cache-Control"] == "no-store"
    native = await cluster.api.get("/v1/topics/public/s/messages")
    assert [one["value_text"] for one in native.json()["messages"]] == ["one", " two"]
    refused = await cluster.api.post("/v1/topics/public/s/messages", b"x", TEXT)
    assert (refused.status, refused.json()["code"]) == (409, "topic-is-stream")
    large = await cluster.api.post(PARTITION + "/large", b"x" * (5 << 20), TEXT)
    assert (large.status, large.json()["code"]) == (409, "topic-is-stream")
    assert (await cluster.api.call("DELETE", S)).status == 204
    assert (await get(cluster)).status == 404
    assert (await post(cluster, b"x")).status == 404
    assert (await cluster.api.call("DELETE", S)).status == 404
    again = await put(cluster, JSON)
    assert again.status == 201, again
    assert (await get(cluster)).body == b"[]"


async def test_json_is_taken_apart_and_given_as_arrays(cluster: Cluster) -> None:
    assert (await put(cluster, JSON, b"[]")).status == 201
    for body in (b'{"a": 1}', b'[{"b":2}, [3, 4]]', b"[[[5]]]", b' "x" ', b"null"):
        assert (await post(cluster, body, "application/JSON; charset=utf-8")).status == 204
    assert (await get(cluster)).json() == [{"a": 1}, {"b": 2}, [3, 4], [[5]], "x", None]
    assert (await get(cluster, f"?offset={at(2)}")).json() == [[3, 4], [[5]], "x", None]
    for body in (b"[]", b"{", b"[1,]", b"\xff"):
        assert (await post(cluster, body, JSON)).status == 400, body
    assert (await get(cluster, "?offset=now")).body == b"[]"
    assert (await post(cluster, b"1", TEXT)).status == 409
    assert (await post(cluster, b"1", "", Content_Type="")).status == 400
    assert (await post(cluster, b"", JSON)).status == 400


async def test_what_is_closed_has_ended(cluster: Cluster) -> None:
    await put(cluster)
    await post(cluster, b"all")
    tag = (await get(cluster)).headers["ETag"]
    closed = await post(cluster, b"", "", Stream_Closed="true")
    assert (closed.status, closed.headers["Stream-Closed"]) == (204, "true")
    assert (await post(cluster, b"", "", Stream_Closed="TRUE")).status == 204
    late = await post(cluster, b"more", JSON)
    assert (late.status, late.headers["Stream-Closed"]) == (409, "true")
    assert late.headers["Stream-Next-Offset"] == at(1)
    assert (await post(cluster, b"more", Stream_Closed="true")).status == 409
    whole = await get(cluster, If_None_Match=tag)
    assert (whole.status, whole.body, whole.headers["Stream-Closed"]) == (200, b"all", "true")
    assert (await put(cluster)).status == 409
    assert (await put(cluster, Stream_Closed="true")).status == 200
    assert "Stream-Closed" in (await cluster.api.call("HEAD", S)).headers


async def test_a_long_poll_waits_for_more_or_the_end(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("quick", stream_poll_ms=300)
        await put(cluster, body=b"a")
        assert (await get(cluster, "?live=long-poll")).status == 400
        assert (await get(cluster, "?offset=-1&live=never")).status == 400
        there = await get(cluster, "?offset=-1&live=long-poll")
        assert (there.status, there.body) == (200, b"a")
        assert there.headers["Stream-Cursor"].isdigit()
        nothing = await get(cluster, f"?offset={at(1)}&live=long-poll")
        assert (nothing.status, nothing.headers["Stream-Up-To-Date"]) == (204, "true")
        assert nothing.headers["Stream-Next-Offset"] == at(1)


async def test_whoever_waits_is_told_at_once(cluster: Cluster) -> None:
    await put(cluster)
    for query in (f"?offset={at(0)}&live=long-poll", "?offset=now&live=long-poll"):
        waiting = asyncio.create_task(get(cluster, query))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await post(cluster, b"x")
        found = await waiting
        assert (found.status, found.body) == (200, b"x"), query
        await cluster.api.call("DELETE", S)
        await put(cluster)
    waiting = asyncio.create_task(get(cluster, "?offset=now&live=long-poll"))
    await asyncio.sleep(0.3)
    await post(cluster, b"", "", Stream_Closed="true")
    found = await waiting
    assert (found.status, found.headers["Stream-Closed"]) == (204, "true")
    assert "Stream-Cursor" not in found.headers
    at_once = await get(cluster, "?offset=now&live=long-poll")
    assert (at_once.status, at_once.headers["Stream-Closed"]) == (204, "true")


@pytest.mark.parametrize("kind", [TEXT, JSON, "application/octet-stream"])
async def test_events(cluster: Cluster, kind: str) -> None:
    await put(cluster, kind, b"[1, 2]")
    readers = [
        asyncio.create_task(api.call("GET", S + "?offset=-1&live=sse"))
        for api in cluster.apis.values()
    ]
    await asyncio.sleep(0.3)
    await post(cluster, b"3", kind)
    await post(cluster, b"4", kind, Stream_Closed="true")
    for reader in readers:
        answer = await reader
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        binary = answer.headers.get("Stream-SSE-Data-Encoding") == "base64"
        assert binary == (kind not in (TEXT, JSON))
        events = answer.body.decode().replace("data:", "").split("\n\n")
        told = [event.split("\n")[1] for event in events if event.startswith("event: data")]
        if binary:
            told = [b64decode(one).decode() for one in told]
        if kind == JSON:
            told = [str(value) for one in told for value in json.loads(one)]
            assert told == ["1", "2", "3", "4"]
        else:
            assert "".join(told) == "[1, 2]34"
        last = json.loads(events[-2].split("\n")[1])
        assert last["streamClosed"] is True
        assert "streamCursor" not in last
        first = json.loads(next(e for e in events if "control" in e).split("\n")[1])
        assert first["streamNextOffset"] in (at(1), at(2), at(3))
        assert first == last or first["streamCursor"].isdigit(), "a reader may come late"


async def test_text_that_was_cut_anywhere_is_whole_in_events(cluster: Cluster) -> None:
    """Within a character and a line's end; read at once, live, and from each offset."""
    parts = [b"a\xe2", b"\x82", b"\xac\r", b"\nb\r", b"c", b"\xf0\x9f", b"\x98\x80\xff!", b"\xe2"]
    whole = b"".join(parts).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")

    def text_of(body: bytes) -> str:
        events = [one for one in body.decode().split("\n\n") if one.startswith("event: data")]
        lines = [[line.removeprefix("data:") for line in one.split("\n")[1:]] for one in events]
        return "".join("\n".join(one) for one in lines)

    await put(cluster, "text/markdown")
    reader = asyncio.create_task(get(cluster, "?offset=-1&live=sse"))
    await asyncio.sleep(0.1)
    for part in parts:
        await post(cluster, part, "text/markdown")
    await post(cluster, b"", "", Stream_Closed="true")
    assert text_of((await reader).body) == whole
    assert text_of((await get(cluster, "?offset=-1&live=sse")).body) == whole
    for start in range(1, len(parts)):
        rest = text_of((await get(cluster, f"?offset={at(start)}&live=sse")).body)
        assert whole.endswith(rest), (start, rest)
        decoder = getincrementaldecoder("utf-8")("replace")
        before = decoder.decode(b"".join(parts[:start]))
        seen = before.replace("\r\n", "\n").replace("\r", "\n")
        assert seen + rest == whole, (start, rest)


async def test_events_end_and_are_asked_for_again(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("quick", stream_events_ms=300)
        await put(cluster)
        answer = await get(cluster, "?offset=-1&live=sse")
        assert answer.body.startswith(b"event: control\ndata:{")
        assert b'"upToDate":true' in answer.body
        assert (await get(cluster, f"?offset={at(5)}&live=sse")).status == 400


async def test_events_go_on_when_the_stream_moves(cluster: Cluster) -> None:
    await put(cluster, body=b"a")
    readers = [
        asyncio.create_task(api.call("GET", S + "?offset=-1&live=sse"))
        for api in cluster.apis.values()
    ]
    await asyncio.sleep(0.3)
    before = await cluster.owner_of(PARTITION)
    to = next(one for one in cluster.brokers if one != before)
    moved = await cluster.api.post(f"{PARTITION}/unload?to={to}")
    assert moved.status == 200, moved
    assert (await post(cluster, b"b")).status == 204
    assert (await post(cluster, b"", "", Stream_Closed="true")).status == 204
    for reader in readers:
        lines = (await reader).body.split(b"\n")
        told = [line[5:] for line in lines if line.startswith(b"data:") and b"{" not in line]
        assert b"".join(told) == b"ab"
        assert b'"streamClosed":true' in lines[-3], lines


async def test_who_is_idle_for_too_long_goes(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await put(cluster, body=b"a", Stream_TTL="1")).status == 201
        assert (await cluster.api.call("HEAD", S)).headers["Stream-TTL"] == "1"
        await asyncio.sleep(1.1)
        assert (await get(cluster)).status == 404
        assert (await put(cluster, body=b"b", Stream_TTL="1")).status == 201
        assert (await get(cluster)).body == b"b"
        for _ in range(200):
            if (await cluster.api.get("/v1/topics/public/s")).status == 404:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("it is still there")
        soon = "2000-01-01T00:00:00Z"
        await put(cluster, Stream_Expires_At=soon)
        assert (await get(cluster)).status == 404
        late = "2100-01-01T00:00:00+01:00"
        assert (await put(cluster, Stream_Expires_At=late)).status == 201
        assert (await cluster.api.call("HEAD", S)).headers["Stream-Expires-At"] == late
        assert (await put(cluster, Stream_Expires_At="2099-12-31T23:00:00Z")).status == 200
        wrong: list[dict[str, Any]] = [
            {"Stream_TTL": "01"},
            {"Stream_Expires_At": "soon"},
            {"Stream_TTL": "1", "Stream_Expires_At": late},
        ]
        for words in wrong:
            assert (await put(cluster, **words)).status == 400


async def test_a_topic_becomes_a_stream(cluster: Cluster) -> None:
    topic = "/v1/topics/public/s"
    assert (await cluster.api.put(topic)).status == 201
    assert (await get(cluster)).status == 404
    await cluster.api.post(topic + "/messages", b"before", TEXT)
    assert (await put(cluster, JSON)).status == 409
    assert (await put(cluster, body=b" after")).status == 201
    assert (await get(cluster)).body == b"before after"
    await cluster.api.put("/v1/topics/public/two", json={"partitions": 2})
    two = "/v1/durable-streams/public/two"
    assert (await put(cluster, path=two)).status == 409
    assert (await get(cluster, path=two)).status == 404


def counted(sequence: int, epoch: int = 0, producer: str = "p") -> dict[str, str]:
    return {
        "Producer_Id": producer, "Producer_Epoch": str(epoch), "Producer_Seq": str(sequence),
    }  # fmt: skip


async def test_whether_a_topic_of_the_name_is_there_is_a_word_for_programs(
    cluster: Cluster,
) -> None:
    for name, partitions in (("one", 1), ("two", 2)):
        await cluster.api.put(f"/v1/topics/public/{name}", json={"partitions": partitions})
    for name, code, of_a_fork in (
        ("one", "topic-is-no-stream", "topic-is-no-stream"),
        ("two", "topic-is-no-stream", "topic-is-no-stream"),
        ("none", "stream-not-found", "topic-not-found"),
    ):
        path = f"/v1/durable-streams/public/{name}"
        forked = {"Stream-Forked-From": path}
        for api in cluster.apis.values():
            answer = await api.call("GET", path)
            assert (answer.status, answer.json()["code"]) == (404, code)
            answer = await api.call("PUT", S, headers=forked)
            assert (answer.status, answer.json()["code"]) == (404, of_a_fork)


async def test_a_producers_repeats_are_known(cluster: Cluster) -> None:
    await put(cluster)
    for number in range(3):
        new = await post(cluster, b"%d" % number, **counted(number))
        assert (new.status, new.headers["Producer-Seq"]) == (200, str(number))
    again = await post(cluster, b"1", **counted(1))
    assert (again.status, again.headers["Producer-Seq"]) == (204, "2")
    gap = await post(cluster, b"9", **counted(9))
    assert (gap.status, gap.headers["Producer-Expected-Seq"]) == (409, "3")
    assert gap.headers["Producer-Received-Seq"] == "9"
    assert (await post(cluster, b"x", **counted(1, epoch=1))).status == 400
    assert (await post(cluster, b"3", **counted(0, epoch=1))).status == 200
    stale = await post(cluster, b"x", **counted(3))
    assert (stale.status, stale.headers["Producer-Epoch"]) == (403, "1")
    assert (await post(cluster, b"x", Producer_Id="p")).status == 400
    assert (await post(cluster, b"x", **counted(0, producer=""))).status == 400
    assert (await post(cluster, b"x", **{**counted(0), "Producer_Seq": "1.5"})).status == 400
    assert (await post(cluster, b"4", Stream_Seq="09")).status == 204
    assert (await post(cluster, b"x", Stream_Seq="09")).status == 409
    assert (await post(cluster, b"x", Stream_Seq="9" * (WORD_BYTES_MAX + 1))).status == 400
    last = await post(cluster, b"5", Stream_Closed="true", **counted(1, epoch=1))
    assert (last.status, last.headers["Stream-Closed"]) == (200, "true")
    same = await post(cluster, b"other", Stream_Closed="true", **counted(1, epoch=1))
    assert (same.status, same.headers["Stream-Closed"]) == (204, "true")
    late = await post(cluster, b"x", **counted(2, epoch=1))
    assert (late.status, late.headers["Stream-Closed"]) == (409, "true")
    assert (await get(cluster)).body == b"012345"


async def test_repeats_that_come_at_once_are_stored_once(cluster: Cluster) -> None:
    await put(cluster)
    for number in range(5):
        found = await asyncio.gather(
            *[post(cluster, b"%d" % number, **counted(number)) for _ in range(5)]
        )
        assert sorted(one.status for one in found) == [200, *[204] * 4]
    assert (await get(cluster)).body == b"01234"


@pytest.mark.parametrize("how", ["crash", "hand-over"])
async def test_a_take_over_keeps_all_of_it(tmp_path: Path, how: str) -> None:
    async with running_cluster(tmp_path, brokers=3) as cluster:
        assert (await put(cluster, JSON, b"[0]", Stream_TTL="3600")).status == 201
        end = await post(cluster, b"[1, 2]", JSON, Stream_Seq="a", **counted(0))
        for number in (1, 2):
            await _taken_over(cluster, how)
            again = await post(cluster, b"[1, 2]", JSON, Stream_Seq="a", **counted(number - 1))
            assert (again.status, again.headers["Producer-Seq"]) == (204, str(number - 1)), again
            assert (await post(cluster, b"9", JSON, **counted(7))).status == 409
            assert (await post(cluster, b"9", JSON, Stream_Seq="a")).status == 409
            assert (await put(cluster, JSON, b"[0]", Stream_TTL="3600")).status == 200
            assert (await put(cluster, JSON)).status == 409
            end = await post(cluster, b"%d" % (number + 2), JSON, **counted(number))
            assert end.status == 200, end
            if how == "crash" and number == 1:
                break
        closed = await post(cluster, b"", "", Stream_Closed="true", **counted(number + 1))
        assert closed.status == 204, closed
        await _taken_over(cluster, how)
        assert (await post(cluster, b"9", JSON)).headers["Stream-Closed"] == "true"
        late = await post(cluster, b"", "", Stream_Closed="true", **counted(number + 1))
        assert (late.status, late.headers["Stream-Closed"]) == (204, "true"), late
        whole = await get(cluster)
        assert whole.json() == list(range(number + 3))
        assert whole.headers["Stream-Closed"] == "true"
        assert whole.headers["Stream-Next-Offset"] == end.headers["Stream-Next-Offset"]


async def test_the_last_append_closes_also_for_the_next_owner(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await put(cluster)
        last = await post(cluster, b"all", Stream_Closed="true", **counted(0))
        assert (last.status, last.headers["Stream-Closed"]) == (200, "true")
        await _taken_over(cluster, "crash")
        whole = await get(cluster)
        assert (whole.body, whole.headers["Stream-Closed"]) == (b"all", "true")
        assert (await post(cluster, b"all", Stream_Closed="true", **counted(0))).status == 204
        assert (await post(cluster, b"x")).status == 409


async def test_what_is_trimmed_took_no_writers_along(tmp_path: Path) -> None:
    """A take-over reads batches from the last checkpoint on, and trimmed batches are missing."""
    async with running_cluster(tmp_path, brokers=2) as cluster:
        topic = "/v1/topics/public/s"
        await cluster.api.put(topic, json={"rollover": {"entries": 4}})
        await put(cluster)
        for number in range(10):
            assert (await post(cluster, b"x", **counted(number))).status == 200
        for number in range(30):
            await post(cluster, b"y", **counted(number, producer="other"))
        for _ in range(400):
            if len((await cluster.api.get(PARTITION)).json()["ledgers"]) > 1:
                break
            await asyncio.sleep(0.05)
        gone = await cluster.api.call("DELETE", topic + "/messages?before=40")
        assert gone.status == 200, gone
        await _taken_over(cluster, "crash")
        assert (await get(cluster, f"?offset={at(0)}")).status == 410
        again = await post(cluster, b"x", **counted(3))
        assert (again.status, again.headers["Producer-Seq"]) == (204, "9")
        assert (await post(cluster, b"x", **counted(10))).status == 200


async def test_a_checkpoint_and_what_comes_after_it_make_the_whole(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        first = await cluster.start("A", producer_checkpoint_bytes=2_000)
        name = await make_topic(first.broker)
        stream = (await owned(first.broker, name)).stream
        await stream.make(StreamConfig("text/plain"), [], closed=False)
        record = Record(None, b"x" * 100)
        for number in range(50):
            for producer in ("p", "q"):
                await stream.append(
                    [record], Append(producer, 1, number, f"{number:03d}{producer}")
                )
        held = stream.state
        await first.vanish()
        second = await cluster.start("B")
        state = (await owned(second.broker, name)).stream.state
        assert state is not None
        assert held is not None
        assert state.producers == held.producers
        assert state.stream_seq == "049q"


async def _taken_over(cluster: Cluster, how: str) -> None:
    owner = await cluster.owner_of(PARTITION)
    if how == "crash":
        cluster.apis.pop(owner)
        await cluster.brokers[owner].vanish()
    else:
        successor = next(name for name in cluster.apis if name != owner)
        unloaded = await cluster.api.call("POST", f"{PARTITION}/unload?to={successor}")
        assert unloaded.status == 200, unloaded
    for _ in range(400):
        answer = await cluster.api.get(PARTITION)
        if answer.status == 200 and answer.json()["owner"] != owner:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{owner} serves it still")


FORK = "/v1/durable-streams/public/fork"


async def fork(cluster: Cluster, kind: str = "", body: bytes = b"", **more: Any) -> Any:
    words: dict[str, Any] = {"Stream_Forked_From": S, **more}
    return await put(cluster, kind, body, FORK, **words)


async def test_a_fork_begins_with_what_was_there(cluster: Cluster) -> None:
    await put(cluster, body=b"one")
    await post(cluster, b"two", **counted(0))
    made = await fork(cluster)
    assert (made.status, made.headers["Content-Type"]) == (201, TEXT), made
    assert made.headers["Stream-Next-Offset"] == at(2)
    await post(cluster, b"three")
    assert (await get(cluster, path=FORK)).body == b"onetwo"
    own = await post(cluster, b"!", path=FORK, **counted(0))
    assert own.status == 200, "its writers are others"
    assert (await get(cluster, path=FORK)).body == b"onetwo!"
    assert (await get(cluster, f"?offset={at(2)}", path=FORK)).body == b"!"
    assert (await fork(cluster)).status == 200
    assert (await fork(cluster, Stream_Fork_Offset=at(1))).status == 409
    assert (await fork(cluster, JSON)).status == 409
    assert (await put(cluster, path=FORK)).status == 409, "one that begins with nothing"


async def test_a_fork_may_be_cut_within_an_append(cluster: Cluster) -> None:
    await put(cluster, body=b"hello")
    await post(cluster, b"world")
    assert (await post(cluster, b"", "", Stream_Closed="true")).status == 204
    words: dict[str, Any] = {"Stream_Fork_Offset": at(1), "Stream_Fork_Sub_Offset": "2"}
    made = await fork(cluster, body=b"!", **words)
    assert (made.status, made.headers["Stream-Next-Offset"]) == (201, at(3)), made
    assert (await get(cluster, path=FORK)).body == b"hellowo!"
    assert (await fork(cluster, **words)).status == 200
    for wrong in (
        {**words, "Stream_Fork_Sub_Offset": "6"},
        {**words, "Stream_Fork_Sub_Offset": "-1"},
        {"Stream_Fork_Sub_Offset": "1"},
        {"Stream_Fork_Offset": at(3)},
        {"Stream_Fork_Offset": "0"},
        {"Stream_Forked_From": "/elsewhere"},
        {"Stream_Forked_From": "/v1/durable-streams/other/s"},
    ):
        refused = await put(
            cluster, "", path=FORK + "2", **{"Stream_Forked_From": S, **wrong}
        )  # fmt: skip
        assert refused.status == 400, (wrong, refused)
    other = "/v1/durable-streams/public/nothing"
    nothing = await put(cluster, path=FORK + "2", Stream_Forked_From=other)
    assert nothing.status == 404
    alone = await put(cluster, path=FORK + "2", Stream_Fork_Offset=at(0))
    assert alone.status == 400


async def test_a_fork_of_json_counts_messages(cluster: Cluster) -> None:
    await put(cluster, JSON, b"[1, 2, 3]")
    await post(cluster, b"[4]", JSON)
    words: dict[str, Any] = {"Stream_Fork_Offset": at(1), "Stream_Fork_Sub_Offset": "1"}
    assert (await fork(cluster, body=b"[9]", **words)).status == 201
    assert (await get(cluster, path=FORK)).json() == [1, 2, 9]
    beyond = await put(
        cluster, JSON, path=FORK + "2", Stream_Forked_From=S,
        **{**words, "Stream_Fork_Sub_Offset": "3"},
    )  # fmt: skip
    assert beyond.status == 400


async def test_a_source_keeps_its_name_while_it_has_forks(cluster: Cluster) -> None:
    await put(cluster, body=b"a")
    await fork(cluster)
    assert (await cluster.api.call("DELETE", S)).status == 204
    for method in ("GET", "HEAD", "POST", "DELETE"):
        gone = await cluster.api.call(method, S, headers={"Content-Type": TEXT})
        assert gone.status == 410, (method, gone)
    assert (await put(cluster)).status == 409
    again = await put(cluster, path=FORK + "2", Stream_Forked_From=S)
    assert again.status == 409, again
    await _taken_over(cluster, "hand-over")
    assert (await get(cluster)).status == 410
    assert (await get(cluster, path=FORK)).body == b"a"
    assert (await cluster.api.call("DELETE", FORK)).status == 204
    for _ in range(200):
        if (await get(cluster)).status == 404:
            break
        await asyncio.sleep(0.05)
    assert (await put(cluster, body=b"b")).status == 201
    assert (await get(cluster)).body == b"b"


async def test_a_fork_lives_as_its_source_unless_it_says_so(cluster: Cluster) -> None:
    await put(cluster, body=b"a", Stream_TTL="1000")
    assert (await fork(cluster)).status == 201
    assert (await cluster.api.call("HEAD", FORK)).headers["Stream-TTL"] == "1000"
    own = await put(cluster, path=FORK + "2", Stream_Forked_From=S, Stream_TTL="7")
    assert own.status == 201
    assert (await cluster.api.call("HEAD", FORK + "2")).headers["Stream-TTL"] == "7"


async def test_a_bulk_load_into_a_stream_is_refused_before_anything_is_committed(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await put(cluster, JSON)).status == 201
        plain = "/v1/topics/public/plain"
        assert (await cluster.api.put(plain)).status == 201
        running = cluster.brokers[await cluster.owner_of(PARTITION)]
        parts = []
        for topic in ("plain", "s"):
            name = PartitionName("public", topic, 0)
            one = await private(running, name, "q", 0, [1])
            ledger = {
                "id": one.ledger_id, "messages": one.count, "bytes": one.bytes,
                "first_ms": one.first_ms, "last_ms": one.last_ms,
            }  # fmt: skip
            parts.append({"topic": f"public/{topic}", "partition": 0, "ledgers": [ledger]})
        shares = [{"topic": "public/s", "partition": 0, "content": "x"}]
        for api in cluster.apis.values():
            for step, body in (("commit", {"parts": parts}), ("begin", {"parts": shares})):
                answer = await api.post(f"/v1/bulk-loads/q/batches/0/{step}", json=body)
                assert (answer.status, answer.json()["code"]) == (409, "topic-is-stream"), answer
        assert (await cluster.api.get("/v1/bulk-loads/q")).status == 404
        assert (await get(cluster)).json() == []
        answer = await cluster.api.post(
            "/v1/bulk-loads/q/batches/0/commit", json={"parts": parts[:1]}
        )
        assert answer.status == 200, "the id is not blocked"
        assert (await cluster.api.get(PARTITION)).json()["stream"] is True
        assert "stream" not in (await cluster.api.get(plain + "/partitions/0")).json()


# A broker that had not heard of an existing topic refused a stream, or a fork, as one with other
# settings (seeds 7 and 20 of `stream`).

PATH = "/v1/durable-streams/public/"
UNHEARD_JSON = {"Content-Type": "application/json"}


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Topics that brokers hear of at their next look; `before` runs before that."""
    found: dict[str, Any] = {}
    asked: set[tuple[Topics, str]] = set()
    real = Topics.get

    async def get(self: Topics, name: TopicName, incarnation: str | None = None) -> TopicInfo:
        if not incarnation and name.topic in found and (self, name.topic) not in asked:
            asked.add((self, name.topic))
            await found[name.topic]()
            raise TopicNotFound(f"no topic {name}")
        return await real(self, name, incarnation)

    monkeypatch.setattr(Topics, "get", get)
    return found


async def test_of_a_topic_that_was_made_a_moment_ago(
    cluster: Cluster, unheard: dict[str, Any]
) -> None:
    async def nothing() -> None: ...

    made = await cluster.api.put("/v1/topics/public/s", json={"rollover": {"entries": 7}})
    assert made.status == 201, made
    unheard["s"] = nothing
    answer = await cluster.api.call("PUT", PATH + "s", headers=UNHEARD_JSON)
    assert answer.status == 201, answer
    found = await cluster.api.get("/v1/topics/public/s")
    assert found.json()["settings"]["rollover"]["entries"] == 7


async def test_a_fork_that_another_broker_has_made(
    cluster: Cluster, unheard: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That broker broke off before the stream was made, and the source has grown since."""
    asked, other = cluster.apis.values()
    words = {**UNHEARD_JSON, "Stream-Forked-From": PATH + "source"}

    async def breaks_off(*_: object) -> None:
        raise PartitionMoving("it moves")

    async def is_forked_and_source_grows(name: str) -> None:
        del unheard[name]
        with monkeypatch.context() as patch:
            patch.setattr(durable_streams, "_make", breaks_off)
            assert (await other.call("PUT", PATH + name, headers=words)).status == 503
        grown = await asked.post(PATH + "source", b"2", UNHEARD_JSON["Content-Type"])
        assert grown.status == 204

    made = await asked.call("PUT", PATH + "source", data=b"1", headers=UNHEARD_JSON)
    assert made.status == 201
    for number, name in enumerate(("f1", "f2", "f3", "f4"), 1):
        unheard[name] = partial(is_forked_and_source_grows, name)
        made = await asked.call("PUT", PATH + name, headers=words)
        assert made.status == 201, made
        offset = made.headers["Stream-Next-Offset"]
        assert offset == at(number), "where the other broker has forked it"
        again = {**words, "Stream-Fork-Offset": offset}
        assert (await asked.call("PUT", PATH + name, headers=again)).status == 200
        end = await asked.call("GET", f"{PATH}{name}?offset={offset}")
        assert (end.status, end.json()) == (200, []), end


async def test_while_another_broker_forks_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answered `PUT` with a 404, which is not repeated (seed 42)."""

    async def is_there(*_: object, **__: object) -> TopicInfo:
        raise TopicExists("it is there")

    async def is_not_made(*_: object) -> TopicInfo:
        raise TopicNotFound("it is being forked; ask again in a moment")

    await cluster.api.call("PUT", PATH + "source", headers=UNHEARD_JSON)
    monkeypatch.setattr(Forks, "make", is_there)
    monkeypatch.setattr(Topics, "newest", is_not_made)
    words = {**UNHEARD_JSON, "Stream-Forked-From": PATH + "source"}
    answer = await cluster.api.call("PUT", PATH + "fork", headers=words)
    assert (answer.status, answer.json()["retryable"]) == (503, True), answer


# A producer could take exclusive access to a stream: then every append was refused, since an
# append has no place for the epoch.

STREAM = "/v1/durable-streams/public/story"
TOLD_TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
async def told_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_what_is_not_there_is_a_stream(told_cluster: Cluster, method: str) -> None:
    answer = await told_cluster.api.call(method, STREAM, data=b"x", headers=TOLD_TEXT)
    assert (answer.status, answer.json()["code"]) == (404, "stream-not-found")
    assert "PUT /v1/durable-streams/public/story makes it" in answer.json()["detail"]


async def test_nobody_has_a_stream_alone(told_cluster: Cluster) -> None:
    assert (await told_cluster.api.put(STREAM, headers=TOLD_TEXT)).status == 201
    path = "/v1/topics/public/story/partitions/0/producer-access"
    answer = await told_cluster.api.post(path, json={"producer": "a"})
    assert (answer.status, answer.json()["code"]) == (409, "topic-is-stream")
    answer = await told_cluster.api.post(STREAM, data=b"Once", headers=TOLD_TEXT)
    assert answer.status == 204


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in cluster.apis.values()]) as found:
        yield found


async def values_of(stream: AsyncStream) -> list[Any]:
    return (await stream.read()).values


async def test_json_is_appended_and_read_from_any_place(client: AsyncClient) -> None:
    events = client.stream("public/events")
    with pytest.raises(NotFound, match="there is no stream public/events"):
        await events.head()
    assert await events.create() is True
    assert await events.create() is False
    first = await events.append({"a": 1})
    assert first.duplicate is False
    assert (await events.append([2, 3])).next_offset > first.next_offset
    last = await events.append_many([None, "x"])
    part = await events.read()
    assert part.values == [{"a": 1}, [2, 3], None, "x"], "a list is one message"
    assert (part.next_offset, part.up_to_date, part.closed) == (last.next_offset, True, False)
    assert (await events.read(first.next_offset)).values == [[2, 3], None, "x"]
    assert (await events.read("now")).values == []
    with pytest.raises(InvalidCall, match="JSON has no object"):
        await events.append(object())
    with pytest.raises(InvalidCall, match="no values to append"):
        await events.append_many([])
    with pytest.raises(Conflict):
        await client.stream("events").create("text/plain")


async def test_bytes_are_joined_and_may_be_of_any_kind(client: AsyncClient) -> None:
    story = client.stream("story")
    await story.create("text/plain", ttl_s=3_600)
    await story.append("Once upon a time")
    await story.append(b" there was a log.")
    found = await client.stream("story").read()
    assert found.data == b"Once upon a time there was a log."
    with pytest.raises(InvalidCall, match="is not JSON"):
        assert found.values
    with pytest.raises(InvalidCall, match="bytes or text"):
        await story.append({"a": 1})
    with pytest.raises(InvalidCall, match="bytes or text"):
        await story.close(5)
    with pytest.raises(InvalidCall, match="one by one"):
        await story.append_many([b"x"])
    said = await story.head()
    assert (said.content_type, said.ttl_s, said.expires_at) == ("text/plain", 3_600, None)
    assert (said.next_offset, said.closed) == (found.next_offset, False)
    until = datetime(2100, 1, 1, tzinfo=UTC)
    await client.stream("later").create(expires_at=until)
    assert (await client.stream("later").head()).expires_at == until
    with pytest.raises(InvalidCall, match="without a zone"):
        await client.stream("later").create(expires_at=datetime(2100, 1, 1))


async def test_followed_it_gives_all_as_it_comes_and_ends_with_the_stream(
    client: AsyncClient,
) -> None:
    events = client.stream("events")
    await events.create()
    await events.append(0)
    seen: list[Any] = []
    parts: list[StreamPart] = []

    async def follow() -> None:
        async for part in client.stream("events").follow():
            seen.extend(part.values)
            parts.append(part)

    follower = asyncio.create_task(follow())
    for number in range(1, 20):
        await events.append(number)
    assert await events.close("the end") == await events.close()
    async with asyncio.timeout(20):
        await follower
    assert seen == [*range(20), "the end"]
    assert parts[-1].closed
    (last,) = [part async for part in events.follow(parts[-1].next_offset)]
    assert last.values == []
    with pytest.raises(Conflict) as refused:
        await events.append("too late")
    assert refused.value.code == "stream-closed"
    assert (await events.head()).closed


async def test_a_fork_goes_its_own_way_and_outlives_its_source(client: AsyncClient) -> None:
    events = client.stream("events")
    await events.create()
    cut = (await events.append(1)).next_offset
    await events.append(2)
    again, whole = await events.fork("again", cut), await events.fork("whole")
    await again.append("mine")
    await events.append(3)
    assert await values_of(again) == [1, "mine"]
    assert await values_of(whole) == [1, 2]
    await events.delete()
    with pytest.raises(Trimmed):
        await events.read()
    assert await values_of(whole) == [1, 2]
    await again.delete()
    await whole.delete()
    with pytest.raises(NotFound):
        await whole.read()


async def test_one_of_the_same_name_is_another_one(client: AsyncClient) -> None:
    events, other = client.stream("events"), client.stream("events")
    await events.create()
    await events.append(1)
    await other.delete()
    await other.create()
    await other.append("another")
    with pytest.raises(TopicReplaced):
        await events.append(2)
    assert await events.create() is False, "now it means that one"
    await events.append(3)
    assert await values_of(events) == ["another", 3]


async def test_an_order_of_all_writers(client: AsyncClient) -> None:
    one, two = client.stream("events"), client.stream("events")
    await one.create()
    await one.append("first", seq="2026-01")
    await two.append("second", seq="2026-02")
    with pytest.raises(Conflict):
        await one.append("late", seq="2026-01")
    await one.append("no word, no order")
    assert await values_of(one) == ["first", "second", "no word, no order"]


class Torn:
    """HTTP whose answers to appends may get lost, whether they took effect or not."""

    def __init__(self) -> None:
        self.inner = HttpWire()
        self.lose = 0
        self.seen: list[tuple[str, str]] = []

    async def send(
        self, method: str, url: str, params: Mapping[str, str], body: Body,
        headers: Mapping[str, str], *, timeout_s: float, follow: bool = True,
    ) -> Reply:  # fmt: skip
        reply = await self.inner.send(
            method, url, params, body, headers, timeout_s=timeout_s, follow=follow
        )
        if method == "POST":
            self.seen.append((headers["Producer-Epoch"], headers["Producer-Seq"]))
            if self.lose:
                self.lose -= 1
                raise NoAnswer("the answer was lost")
        return reply

    def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> AbstractAsyncContextManager[Streamed]:
        return self.inner.stream(url, params, headers, quiet_s=quiet_s)

    async def close(self) -> None:
        await self.inner.close()


async def test_an_append_whose_answer_was_lost_is_stored_once(cluster: Cluster) -> None:
    wire = Torn()
    async with AsyncClient([api.url for api in cluster.apis.values()], wire=wire) as client:
        events = client.stream("events")
        await events.create()
        wire.lose = 2
        assert (await events.append(1)).duplicate is True
        assert (await events.append(2)).duplicate is False
        assert await values_of(events) == [1, 2]
        assert wire.seen == [("0", "0")] * 3 + [("0", "1")]


async def test_after_one_of_which_nobody_knows_a_new_epoch_begins(cluster: Cluster) -> None:
    wire = Torn()
    urls = [api.url for api in cluster.apis.values()]
    async with AsyncClient(urls, wire=wire, retry_s=0.0) as client:
        events = client.stream("events")
        await events.create()
        await events.append(1)
        wire.lose = 1
        with pytest.raises(Unreachable):
            await events.append(2)
        with pytest.raises(ApiError):
            await events.append("x" * 5_000_000)
        assert (await events.append(3)).duplicate is False, "it must not pass for the lost one"
        assert await values_of(events) == [1, 2, 3]
        assert wire.seen == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "0")]


async def test_many_tasks_may_append_at_once(client: AsyncClient) -> None:
    events = client.stream("events")
    await events.create()
    await asyncio.gather(*(events.append(number) for number in range(30)))
    assert sorted(await values_of(events)) == [*range(30)]


async def test_it_goes_on_through_a_take_over(cluster: Cluster, client: AsyncClient) -> None:
    events = client.stream("events")
    await events.create()
    seen: list[Any] = []

    async def follow() -> None:
        async for part in client.stream("events").follow():
            seen.extend(part.values)

    follower = asyncio.create_task(follow())
    for number in range(5):
        await events.append(number)
    owner = await cluster.owner_of("/v1/topics/public/events/partitions/0")
    await cluster.stop_broker(owner)
    for number in range(5, 10):
        await events.append(number)
    await events.close()
    async with asyncio.timeout(30):
        await follower
    assert seen == [*range(10)]


async def test_the_client_that_waits_has_the_same(cluster: Cluster) -> None:
    def work() -> None:
        with Client(cluster.api.url) as client:
            events = client.stream("events")
            assert events.create() is True
            events.append({"a": 1})
            end = events.append_many([2, 3]).next_offset
            again = events.fork("again")
            assert events.close("end") > end
            assert [part.values for part in events.follow(end)] == [["end"]]
            assert events.read().values == [{"a": 1}, 2, 3, "end"]
            assert (again.name, again.read().values) == ("public/again", [{"a": 1}, 2, 3])
            assert events.head().closed
            again.delete()
            events.delete()

    await asyncio.to_thread(work)
