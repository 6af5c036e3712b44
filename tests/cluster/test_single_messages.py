"""Single messages of many callers share batches: each is answered with its own place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.cluster import running_cluster

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
