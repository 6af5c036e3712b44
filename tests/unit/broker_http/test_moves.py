"""Draining brokers and unloading topics over HTTP: at any broker, and what is refused."""

from __future__ import annotations

from tests.support.memory_cluster import Running

TOPIC = "/v1/topics/public/four"


async def test_any_broker_drains_any_other(two: Running) -> None:
    for api in two.apis:
        answer = await api.post("/v1/brokers/b1/drain")
        assert answer.status == 200, answer
        assert answer.json() == {"id": "b1", "draining": True, "partitions": 0}
    assert [two.brokers[name].registry.is_draining for name in ("b0", "b1")] == [False, True]
    shown = (await two.api.get("/v1/brokers")).json()["brokers"]
    assert [(one["id"], one["draining"], one["partitions"]) for one in shown] == [
        ("b0", False, 0),
        ("b1", True, 0),
    ]
    page = await two.api.get("/")
    assert b"draining" in page.body
    answer = await two.apis[0].call("DELETE", "/v1/brokers/b1/drain")
    assert answer.json()["draining"] is False
    assert not two.brokers["b1"].registry.is_draining


async def test_who_does_not_live_cannot_be_drained(two: Running) -> None:
    for method in ("POST", "DELETE"):
        answer = await two.api.call(method, "/v1/brokers/nobody/drain")
        assert (answer.status, answer.json()["code"]) == (404, "broker-not-found")


async def test_the_only_one_cannot_be_drained(one: Running) -> None:
    answer = await one.api.post("/v1/brokers/b0/drain")
    assert (answer.status, answer.json()["code"]) == (409, "no-other-broker")
    assert answer.json()["retryable"] is False


async def test_a_topic_is_unloaded_to_one_broker(two: Running) -> None:
    await two.api.put(TOPIC, json={"partitions": 4})
    preferred = [await two.owner("four", number) for number in range(4)]
    for api in two.apis:
        answer = await api.post(f"{TOPIC}/unload?to=b1")
        assert answer.status == 200, answer
        assert [one["to_broker"] for one in answer.json()["partitions"]] == ["b1"] * 4
        assert not two.brokers["b0"].ownership.open_partitions()
    answer = await two.api.post(f"{TOPIC}/partitions/2/unload?to=b0")
    assert answer.json() == {"partition": 2, "from_broker": "b1", "to_broker": "b0"}
    answer = await two.api.post(f"{TOPIC}/unload")
    assert [one["to_broker"] for one in answer.json()["partitions"]] == preferred


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
