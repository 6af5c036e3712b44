"""Draining brokers and unloading topics over HTTP: at any broker, and what is refused."""

from __future__ import annotations

import msgspec

from octavo.broker.cluster.handing import Handed
from octavo.broker.http.api.moves import PrepareBody, TakeBody, end_body
from octavo.broker.http.broker_calls import INCARNATION_HEADER, BrokerProof
from octavo.broker.log.ledger_list import Contents
from octavo.broker.partition.ending import Foretold, PartitionEnd
from octavo.broker.types import TopicName
from octavo.security.principal import ANONYMOUS
from tests.support.fake_broker import CALL_KEY, Running

TOPIC = "/v1/topics/public/four"


async def test_any_broker_drains_any_other(two: Running) -> None:
    for api in two.apis:
        answer = await api.post("/v1/brokers/b1/drain")
        assert answer.status == 200, answer
        assert answer.json() == {"id": "b1", "draining": True, "partitions": 0}
    assert [two.cluster.brokers[name].draining for name in ("b0", "b1")] == [False, True]
    shown = (await two.api.get("/v1/brokers")).json()["brokers"]
    assert [(one["id"], one["draining"], one["partitions"]) for one in shown] == [
        ("b0", False, 0),
        ("b1", True, 0),
    ]
    page = await two.api.get("/")
    assert b"draining" in page.body
    answer = await two.apis[0].call("DELETE", "/v1/brokers/b1/drain")
    assert answer.json()["draining"] is False
    assert not two.cluster.brokers["b1"].draining


async def test_who_does_not_live_cannot_be_drained(two: Running) -> None:
    for method in ("POST", "DELETE"):
        answer = await two.api.call(method, "/v1/brokers/nobody/drain")
        assert (answer.status, answer.json()["code"]) == (404, "broker-not-found")


async def test_the_only_one_cannot_be_drained(one: Running) -> None:
    answer = await one.api.post("/v1/brokers/b0/drain")
    assert (answer.status, answer.json()["code"]) == (409, "no-other-broker")
    assert answer.json()["retryable"] is False


async def test_a_call_that_came_to_the_wrong_broker_is_not_passed_on_again(two: Running) -> None:
    headers: dict[str, str] = {}
    path = "/v1/brokers/b1/drain"
    BrokerProof(CALL_KEY, "b7").enter(headers, "b7", "b0", "POST", path, ANONYMOUS)
    answer = await two.apis[0].call("POST", path, headers=headers)
    assert (answer.status, answer.json()["code"]) == (503, "not-owner")


async def test_a_topic_is_unloaded_to_one_broker(two: Running) -> None:
    await two.api.put(TOPIC, json={"partitions": 4})
    for api in two.apis:
        answer = await api.post(f"{TOPIC}/unload?to=b1")
        assert answer.status == 200, answer
        assert [one["to_broker"] for one in answer.json()["partitions"]] == ["b1"] * 4
        assert set(two.cluster.owners.values()) == {"b1"}
    answer = await two.api.post(f"{TOPIC}/partitions/2/unload?to=b0")
    assert answer.json() == {"partition": 2, "from_broker": "b1", "to_broker": "b0"}
    answer = await two.api.post(f"{TOPIC}/unload")
    assert [one["to_broker"] for one in answer.json()["partitions"]] == ["b1", "b1", "b0", "b1"]


async def test_what_cannot_be_unloaded(two: Running) -> None:
    await two.api.put(TOPIC, json={"partitions": 4})
    for path, code in (
        (f"{TOPIC}/unload?to=nobody", "broker-not-found"),
        (f"{TOPIC}/partitions/0/unload?to=nobody", "broker-not-found"),
        ("/v1/topics/public/none/unload", "topic-not-found"),
        (f"{TOPIC}/partitions/9/unload", "partition-not-found"),
    ):
        answer = await two.api.post(path)
        assert (answer.status, answer.json()["code"]) == (404, code), path


async def test_only_brokers_hand_on(two: Running) -> None:
    await two.api.put(TOPIC, json={"partitions": 4})
    broker = BrokerProof(CALL_KEY, "b1")
    end = PartitionEnd(3, 7, 11, Contents(12, 4000, 5, 9, 1), 8, (b"\x00\xff", b""))
    for path, body in (
        ("prepare", PrepareBody("i0", 3, True)),
        ("take", TakeBody("i0", True, end_body(end))),
    ):
        target, data = f"{TOPIC}/partitions/0/{path}", msgspec.json.encode(body)
        assert (await two.api.post(target, data, "application/json")).status == 403
        headers = {INCARNATION_HEADER: "i0", "Content-Type": "application/json"}
        broker.enter(headers, "b1", "b0", "POST", target, ANONYMOUS)
        answer = await two.api.call("POST", target, data=data, headers=headers)
        assert answer.status == 204, answer
    heir = two.cluster.brokers["b0"]
    assert heir.foretold == [Foretold("i0", 3, True)]
    assert heir.taken == [(TopicName("public", "four").partition(0), Handed("i0", True, end))]


async def test_what_an_heir_is_told_is_read_with_care(two: Running) -> None:
    await two.api.put(TOPIC, json={"partitions": 4})
    broker = BrokerProof(CALL_KEY, "b1")
    for path, body in (
        ("prepare", {"incarnation": "i0", "epoch": -1, "has_state": True}),
        ("prepare", {"incarnation": "i0"}),
        ("take", {"incarnation": "i0", "end": {"epoch": 1}}),
        ("take", {"incarnation": 7}),
    ):
        target = f"{TOPIC}/partitions/0/{path}"
        headers = {INCARNATION_HEADER: "i0", "Content-Type": "application/json"}
        broker.enter(headers, "b1", "b0", "POST", target, ANONYMOUS)
        answer = await two.api.call("POST", target, json=body, headers=headers)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-body"), body
