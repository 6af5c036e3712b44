"""Reading, offsets and subscriptions over real HTTP, with a broker core in memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from octavo.protocol.batch import split_batches
from octavo.protocol.records import Record, build_batch
from tests.support.http_api import until
from tests.support.memory_cluster import Running

BATCH = "application/vnd.kafka.recordbatch.v2"
NDJSON = "application/x-ndjson"
ONE = "/v1/topics/public/one"
FOUR = "/v1/topics/public/four"


@pytest.fixture(autouse=True)
async def topics(two: Running) -> None:
    await two.api.put(ONE)
    await two.api.put(FOUR, json={"partitions": 4})


async def fill(two: Running, count: int = 10, path: str = ONE, batch: int = 4) -> None:
    for start in range(0, count, batch):
        messages = [
            {"value": n, "key": f"k{n}", "timestamp": 1_000_000 + n * 1000}
            for n in range(start, min(start + batch, count))
        ]
        answer = await two.api.post(path + "/messages", json={"messages": messages})
        assert answer.status == 200, answer


@pytest.mark.parametrize("broker", [0, 1])
async def test_positions(two: Running, broker: int) -> None:
    await fill(two)
    api = two.apis[broker]
    for position, first in (
        ("earliest", 0),
        ("5", 5),
        ("0:1:2", 6),
        ("1970-01-01T00:16:47Z", 7),
        ("1970-01-01T01:16:47%2B01:00", 7),
        ("1970-01-01T01:16:47+01:00", 7),
    ):
        answer = await api.get(f"{ONE}/messages?from={position}&limit=2")
        assert answer.status == 200, (position, answer)
        assert [m["offset"] for m in answer.json()["messages"]] == [first, first + 1]
        assert answer.headers["Next-Offset"] == str(first + 2) == str(answer.json()["next_offset"])
        assert answer.headers["Octavo-Owner"] == two.apis[0].url
    answer = await api.get(f"{ONE}/messages?from=latest")
    assert (answer.status, answer.headers["Next-Offset"]) == (204, "10")


async def test_forms_of_answers(two: Running) -> None:
    await two.api.post(ONE + "/messages", b'{\n  "pretty": 1\n}', "application/octet-stream")
    await two.api.post(ONE + "/messages", b"\xff\x00", "image/png")
    await two.api.post(ONE + "/messages", b"tr\xc3\xbcb", "text/plain")
    answer = await two.api.get(ONE + "/messages", headers={"Accept": NDJSON})
    assert answer.headers["Content-Type"] == NDJSON
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line.get("value") for line in lines] == [{"pretty": 1}, None, None]
    assert [line.get("value_text") for line in lines] == ['{\n  "pretty": 1\n}', None, "trüb"]
    assert lines[1]["value_base64"] == "/wA="
    answer = await two.api.get(ONE + "/messages", headers={"Accept": BATCH})
    assert [header.base_offset for header, _ in split_batches(answer.body)] == [0, 1, 2]
    answer = await two.api.get(ONE + "/messages", headers={"Accept": "image/png"})
    assert answer.status == 406
    answer = await two.api.get(ONE + "/messages", headers={"Accept": "text/html,*/*;q=0.8"})
    assert answer.headers["Content-Type"] == "application/json"


async def test_headers_and_keys_come_back(two: Running) -> None:
    records = [
        Record(b"\xff", b"1", [("a", b"x"), ("a", b"y"), ("b", b"\xfe"), ("c", None)]),
        Record(None, None),
    ]
    await two.api.post(ONE + "/messages", build_batch(records), BATCH)
    first, second = (await two.api.get(ONE + "/messages")).json()["messages"]
    assert first["key_base64"] == "/w=="
    assert first["headers"] == {"a": ["x", "y"], "b": {"base64": "/g=="}, "c": None}
    assert second["key"] is None
    assert second["value"] is None
    again = {key: first[key] for key in ("key_base64", "value", "headers", "timestamp")}
    assert (await two.api.post(ONE + "/messages", json=again)).status == 200
    third = (await two.api.get(ONE + "/messages?from=2")).json()["messages"][0]
    assert {key: third[key] for key in again} == again


async def test_trimmed_beyond_and_unknown(two: Running) -> None:
    await fill(two)
    assert (await two.api.call("DELETE", ONE + "/messages?before=4")).status == 200
    answer = await two.api.get(ONE + "/messages?from=3")
    assert answer.status == 410
    assert answer.json()["earliest_offset"] == 4
    answer = await two.api.get(ONE + "/messages?from=11")
    assert answer.status == 416
    assert answer.json()["next_offset"] == 10
    answer = await two.api.get(ONE + "/messages?from=10")
    assert answer.status == 204
    for call in (two.api.get, two.api.post):
        answer = await call(FOUR + "/partitions/4/messages")
        assert answer.status == 404, answer
        assert "has partitions 0 to 3, not 4" in answer.json()["detail"]
    answer = await two.api.get("/v1/topics/public/nope/messages")
    assert (answer.status, answer.json()["code"]) == (404, "topic-not-found")
    answer = await two.api.get(FOUR + "/messages")
    assert answer.status == 422
    assert "partitions/0/messages" in answer.json()["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "from=yesterday", "from=-1", "from=1:2", "limit=0", "limit=x", "limit=99999999",
        "max_bytes=0", "wait=61", "wait=-1", "wait=soon", "from=99999999999999999999",
        "from=2013-01-01T00:00:00", "nope=1", "limit=1&limit=2", "from=%ff", "from=", "limit=",
    ],
)  # fmt: skip
async def test_bad_parameters(two: Running, query: str) -> None:
    answer = await two.api.get(f"{ONE}/messages?{query}")
    assert answer.status == 400, answer
    assert answer.json()["detail"]


@pytest.mark.parametrize("broker", [0, 1])
async def test_long_poll(two: Running, broker: int) -> None:
    api = two.apis[broker]
    waiting = asyncio.ensure_future(api.get(ONE + "/messages?wait=10s"))
    await until(lambda: two.waiting("one"))
    await fill(two, 1)
    assert (await waiting).json()["messages"][0]["value"] == 0
    answer = await api.get(ONE + "/messages?from=1&wait=50ms")
    assert (answer.status, answer.headers["Next-Offset"]) == (204, "1")


async def test_a_batch_that_cannot_be_opened(two: Running) -> None:
    """Its checksum is right, its records are not: read around it, or as it is stored."""
    from crc32c import crc32c

    good = build_batch([Record(None, b"a" * 20)])
    body = good[:61] + b"\xff" * (len(good) - 61)
    lie = body[:17] + crc32c(body[21:]).to_bytes(4, "big") + body[21:]
    assert (await two.api.post(ONE + "/messages", good, BATCH)).status == 200
    await (await two.partition("one")).publish(
        lie, checked=True, fits=True
    )  # brokers refuse such a batch: it is damaged later
    assert (await two.api.post(ONE + "/messages", good, BATCH)).status == 200
    answer = await two.api.get(ONE + "/messages")
    assert [m["offset"] for m in answer.json()["messages"]] == [0]
    answer = await two.api.get(ONE + "/messages?from=1")
    assert answer.status == 406
    assert answer.json()["next_offset"] == 2
    answer = await two.api.get(ONE + "/messages?from=1", headers={"Accept": BATCH})
    assert answer.status == 200


async def test_offsets(two: Running) -> None:
    await fill(two, 20, FOUR)
    for api in two.apis:
        found = (await api.get(FOUR + "/offsets")).json()["offsets"]
        assert [one["partition"] for one in found] == [0, 1, 2, 3]
        assert sum(one["offset"] for one in found) == 20
        found = (await api.get(FOUR + "/offsets?at=1970-01-01T00:16:50%2B00:00")).json()["offsets"]
        assert sum(one["offset"] for one in found) == 10
        found = (await api.get(FOUR + "/partitions/3/offsets?at=earliest")).json()["offsets"]
        assert found[0]["partition"] == 3
        assert found[0]["offset"] == 0


async def test_topic_shows_live_figures_of_all_owners(two: Running) -> None:
    await fill(two, 20, FOUR)
    await two.api.put(FOUR + "/subscriptions/s")
    owners = [await two.owner("four", number) for number in range(4)]
    for api in two.apis:
        found = (await api.get(FOUR)).json()
        assert found["messages"] == 20
        assert found["backlog"] == {"s": 20}
        assert [one["owner"] for one in found["partitions"]] == owners
    await two.vanish("b1")
    found = (await two.api.get(FOUR)).json()["partitions"]
    assert found[owners.index("b1")]["problem"]["code"] == "owner-unreachable"
    assert found[owners.index("b0")]["owner"] == "b0"


# ---- subscriptions


async def test_subscription_over_all_partitions(two: Running) -> None:
    await fill(two, 40, FOUR)
    sub = FOUR + "/subscriptions/s"
    assert (await two.api.put(sub, json={"type": "shared"})).status == 201
    assert (await two.api.put(sub, json={"type": "shared"})).status == 200
    assert (await two.api.put(sub, json={"type": "exclusive"})).status == 409
    seen = []
    for turn in range(20):
        api = two.apis[turn % 2]
        answer = await api.post(sub + "/receive?max=7&consumer=c")
        if answer.status == 204:
            break
        messages = answer.json()["messages"]
        assert len(messages) <= 7
        seen += [message["value"] for message in messages]
        other = two.apis[(turn + 1) % 2]
        acked = await other.post(sub + "/ack", json={"ack_ids": [m["ack_id"] for m in messages]})
        assert acked.json() == {"acked": len(messages)}, acked
    assert sorted(seen) == list(range(40))
    found = (await two.api.get(sub)).json()
    assert found["backlog"] == 0
    assert [one["partition"] for one in found["partitions"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 100])
async def test_receive_gives_what_there_is_and_no_more(two: Running, most: int) -> None:
    sub = FOUR + "/subscriptions/s"
    await two.api.put(sub, json={"type": "shared"})
    await two.api.post(
        FOUR + "/messages", json={"messages": [{"key": "only", "value": n} for n in range(6)]}
    )
    answer = await two.api.post(f"{sub}/receive?max={most}")
    assert [m["value"] for m in answer.json()["messages"]] == list(range(min(most, 6)))


@pytest.mark.parametrize("most", [1, 10])
async def test_receive_waits_at_all_partitions(two: Running, most: int) -> None:
    sub = FOUR + "/subscriptions/s"
    await two.api.put(sub, json={"type": "shared"})
    waiting = asyncio.ensure_future(two.apis[1].post(f"{sub}/receive?max={most}&wait=10"))
    await until(lambda: all(two.waiting("four", n) for n in range(4)))
    await two.api.post(FOUR + "/messages", json={"key": "a", "value": "late"})
    answer = await waiting
    assert [m["value"] for m in answer.json()["messages"]] == ["late"]
    assert (await two.api.post(sub + "/receive?wait=100ms")).status == 204


async def test_surplus_of_a_wait_is_given_back(two: Running) -> None:
    """Two partitions get a message at once, one was asked for: the other is not lost."""
    sub = FOUR + "/subscriptions/s"
    await two.api.put(sub, json={"type": "shared"})
    waiting = asyncio.ensure_future(two.api.post(f"{sub}/receive?max=1&wait=10"))
    await until(lambda: all(two.waiting("four", n) for n in range(4)))
    messages = [{"key": f"k{n}", "value": n} for n in range(30)]
    await two.api.post(FOUR + "/messages", json={"messages": messages})
    seen = [m["value"] for m in (await waiting).json()["messages"]]
    assert len(seen) == 1
    while len(seen) < 30:  # a lost message is waited for until the test's time is over
        answer = await two.api.post(sub + "/receive?max=50&wait=1")
        if answer.status == 204:  # on a busy machine a message takes longer to come back than that
            continue
        assert answer.status == 200, (sorted(seen), answer)
        seen += [m["value"] for m in answer.json()["messages"]]
    assert sorted(seen) == list(range(30))


async def test_acks_nacks_and_stale_leases(two: Running) -> None:
    await fill(two, 20, FOUR)
    sub = FOUR + "/subscriptions/s"
    await two.api.put(sub, json={"type": "shared"})
    messages = (await two.api.post(sub + "/receive?max=20")).json()["messages"]
    ids = [message["ack_id"] for message in messages]
    body = {"nack": [{"ack_id": ids[0], "delay": "0s"}, ids[1]], "extend": [ids[2]]}
    assert (await two.api.post(sub + "/ack", json=body)).json() == {"acked": 0}
    again = (await two.api.post(sub + "/receive?max=5")).json()["messages"]
    assert sorted(m["value"] for m in again) == sorted(m["value"] for m in messages[:2])
    assert {m["delivery_count"] for m in again} == {2}
    answer = await two.apis[1].post(sub + "/ack", json={"ack_ids": ids})
    assert answer.status == 409
    assert answer.json()["code"] == "stale-lease"
    assert sorted(answer.json()["stale"]) == sorted(ids[:2])
    answer = await two.api.post(sub + "/ack", json={"ack_ids": [m["ack_id"] for m in again]})
    assert answer.json() == {"acked": 2}
    for bad in ("x", "9-1-1-1", "1-2-3", "-1-0-0-0"):
        answer = await two.api.post(sub + "/ack", json={"ack_ids": [bad]})
        assert answer.status == 400, answer
    answer = await two.api.post(sub + "/ack", json={"up_to": 3})
    assert answer.json()["code"] == "partition-required"
    answer = await two.api.post(
        FOUR + "/partitions/1/subscriptions/s/ack", json={"ack_ids": ["2-0-1-1"]}
    )
    assert answer.json()["code"] == "foreign-ack-id"


async def test_cumulative_ack_and_seek(two: Running) -> None:
    await fill(two, 10)
    sub = ONE + "/subscriptions/s"
    await two.api.put(sub)
    first = (await two.apis[1].post(sub + "/receive?max=3")).json()["messages"]
    assert [m["offset"] for m in first] == [0, 1, 2]
    assert (await two.apis[1].post(sub + "/ack", json={"up_to": "0:1:0"})).json() == {"acked": 5}
    assert (await two.api.get(sub)).json()["backlog"] == 5
    for to, offset in (("earliest", 0), ("latest", 10), (4, 4), ("0:0:2", 2), ("6", 6)):
        answer = await two.apis[1].post(sub + "/seek", json={"to": to})
        assert answer.json() == {"partitions": [{"partition": 0, "offset": offset}]}, answer
    assert (await two.api.post(sub + "/seek", json={"to": "soon"})).status == 422
    assert (await two.api.post(sub + "/seek", json={})).status == 422
    await two.api.put(FOUR + "/subscriptions/s")
    answer = await two.api.post(FOUR + "/subscriptions/s/seek", json={"to": "latest"})
    assert len(answer.json()["partitions"]) == 4
    answer = await two.api.post(FOUR + "/subscriptions/s/seek", json={"to": 5})
    assert answer.json()["code"] == "partition-required"


async def test_exclusive_subscription_refuses_another_consumer(two: Running) -> None:
    await fill(two, 2)
    sub = ONE + "/subscriptions/s"
    await two.api.put(sub)
    assert (await two.api.post(sub + "/receive?consumer=a")).status == 200
    answer = await two.apis[1].post(sub + "/receive?consumer=b")
    assert (answer.status, answer.json()["code"]) == (409, "subscription-busy")
    await fill(two, 8, FOUR)
    sub = FOUR + "/subscriptions/s"
    await two.api.put(sub)
    assert (await two.api.post(sub + "/receive?consumer=a")).status == 200
    answer = await two.apis[1].post(sub + "/receive?consumer=b&wait=1")
    assert (answer.status, answer.json()["code"]) == (409, "subscription-busy")


async def test_receive_answers_in_json_or_ndjson(two: Running) -> None:
    await fill(two, 8, FOUR)
    sub = FOUR + "/subscriptions/s"
    await two.api.put(sub, json={"type": "shared"})
    answer = await two.api.post(sub + "/receive", headers={"Accept": BATCH})
    assert answer.status == 406, answer
    answer = await two.apis[1].post(sub + "/receive", headers={"Accept": NDJSON})
    assert answer.headers["Content-Type"] == NDJSON
    assert sorted(json.loads(line)["value"] for line in answer.body.splitlines()) == list(range(8))


async def test_unknown_subscription(two: Running) -> None:
    for path in (ONE, FOUR):
        for call in (
            two.api.get(path + "/subscriptions/no"),
            two.api.post(path + "/subscriptions/no/receive"),
            two.api.post(path + "/subscriptions/no/seek", json={"to": "earliest"}),
            two.api.post(path + "/subscriptions/no/ack", json={"ack_ids": ["0-1-1-1"]}),
            two.api.call("DELETE", path + "/subscriptions/no"),
        ):
            answer = await call
            assert (answer.status, answer.json()["code"]) == (404, "subscription-not-found")


@pytest.mark.parametrize(
    "body",
    [
        {"type": "partial"}, {"type": "none"}, {"start": "5"},
        {"max_deliveries": 0}, {"dead_letter_topic": "t"}, {"retry_backoff": {}}, {"nope": 1},
        {"max_deliveries": 2, "dead_letter_topic": "one"}, {"retry_backoff": {"first": 0}},
        {"retry_backoff": {"first": "2s", "most": "1s"}}, {"max_deliveries": 1001},
        {"ack_timeout": 0}, {"ack_timeout": "2 weeks"}, {"ack_timeout": None}, {"type": 5},
    ],
)  # fmt: skip
async def test_subscription_settings_that_are_refused(two: Running, body: dict[str, Any]) -> None:
    answer = await two.api.put(ONE + "/subscriptions/s", json=body)
    assert answer.status == 422, answer
    assert (await two.api.get(ONE + "/subscriptions")).json() == {"subscriptions": []}


async def test_a_client_that_leaves_ends_its_wait(two: Running) -> None:
    sub = ONE + "/subscriptions/s"
    await two.api.put(sub, json={"type": "shared"})
    waiting = asyncio.ensure_future(two.api.post(sub + "/receive?wait=60"))
    await until(lambda: two.waiting("one"))
    waiting.cancel()
    await until(lambda: not two.waiting("one"))
    await fill(two, 1)
    assert (await two.api.post(sub + "/receive")).json()["messages"][0]["delivery_count"] == 1
