"""Single messages of many callers share batches: each is answered with its own place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import running_cluster
from tests.support.http_api import until

TOPIC = "/v1/topics/public/t"
CALLERS = 200


@pytest.mark.parametrize("partitions", [1, 3])
async def test_each_has_its_own_place(tmp_path: Path, partitions: int) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        await cluster.api.put(TOPIC, json={"partitions": partitions})
        apis = [*cluster.apis.values()]

        async def publish(number: int) -> tuple[int, int, str]:
            api = apis[number % 2]
            path, text = f"{TOPIC}/messages", f"m{number}"
            if number % 3 == 0:
                body = json.dumps({"value": text, "key": f"k{number}"}).encode()
                answer = await api.post(path, body, "application/json")
            else:
                answer = await api.post(path, text.encode(), "text/plain")
            assert answer.status == 200, answer
            said = answer.json()
            assert said["count"] == 1
            assert said["first"] == said["last"]
            return said["first"]["partition"], said["first"]["offset"], said["first"]["id"]

        places = await asyncio.gather(*(publish(number) for number in range(CALLERS)))
        assert (
            len({place[:2] for place in places}) == len({place[2] for place in places}) == CALLERS
        )
        for number, (partition, offset, message_id) in enumerate(places):
            path = f"{TOPIC}/partitions/{partition}/messages?limit=1&from="
            for where in (str(offset), message_id):
                (found,) = (await apis[number % 2].get(path + where)).json()["messages"]
                assert (found["offset"], found["id"]) == (offset, message_id)
                assert found.get("value", found.get("value_text")) == f"m{number}"
        entries = {message_id.rpartition(":")[0] for _, _, message_id in places}
        assert len(entries) < CALLERS, "some shared theirs"


@pytest.mark.long
@pytest.mark.parametrize("vanishes", [False, True])
async def test_passed_on_through_the_end_of_their_owner(tmp_path: Path, vanishes: bool) -> None:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await cluster.api.put(TOPIC)).status == 201
        owner = await cluster.owner_of(f"{TOPIC}/partitions/0")
        front = next(api for name, api in cluster.apis.items() if name != owner)
        acked: dict[str, dict[str, Any]] = {}
        refused = set[str]()
        enough = asyncio.Event()

        async def publish(name: int) -> None:
            number = 0
            while not enough.is_set():
                text = f"m{name:02}-{number:05}"
                number += 1
                answer = await front.post(f"{TOPIC}/messages", text.encode(), "text/plain")
                if answer.status == 200:
                    acked[text] = answer.json()["first"]
                else:
                    refused.add(answer.json()["code"])

        callers = [asyncio.ensure_future(publish(name)) for name in range(12)]
        await until(lambda: len(acked) >= 400, 30)
        if vanishes:
            await cluster.brokers[owner].vanish()
        else:
            await cluster.stop_broker(owner)
        before = len(acked)
        await until(lambda: len(acked) >= before + 400, 30)
        enough.set()
        await asyncio.gather(*callers)
        assert refused <= {"outcome-unknown", "partition-moving", "not-owner"}, refused
        found: dict[str, list[dict[str, Any]]] = {}
        offset = 0
        while True:
            answer = await front.get(f"{TOPIC}/partitions/0/messages?limit=1000&from={offset}")
            if answer.status == 204:
                break
            for message in answer.json()["messages"]:
                found.setdefault(message["value_text"], []).append(message)
                offset = message["offset"] + 1
        for text, place in acked.items():
            (message,) = found[text]
            assert (message["offset"], message["id"]) == (place["offset"], place["id"])
