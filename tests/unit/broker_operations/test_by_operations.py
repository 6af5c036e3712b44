"""Calls at a broker that does not own the partition go to the owner as operations, not as HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.broker.http.forwarding import Peers
from tests.support.fake_broker import Answer, Running, running

TOPIC = "/v1/topics/public/one"
PART = f"{TOPIC}/partitions/0"
ACCESS = f"{PART}/producer-access"
LEDGER = {"id": 7, "messages": 3, "bytes": 100, "first_ms": 1, "last_ms": 2}
BULK_LOAD = {"parts": [{"topic": "public/one", "partition": 0, "ledgers": [LEDGER]}]}


async def asked_elsewhere(two: Running, method: str, path: str, **how: Any) -> Answer:
    two.cluster.owners[two.partition("public/one").name] = "b0"
    return await two.apis[1].call(method, path, **how)


async def test_no_call_is_sent_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(*_: Any, **__: Any) -> Any:
        raise AssertionError("a broker sent HTTP to another one")

    monkeypatch.setattr(Peers, "_open", sent)
    async with running(2) as two:
        await two.api.put(TOPIC)
        await two.api.put(f"{TOPIC}/subscriptions/s")
        await two.api.post(f"{TOPIC}/messages", b"x", "text/plain")
        got = await asked_elsewhere(two, "POST", ACCESS, json={"producer": "loader"})
        assert (got.status, got.json()["producer"]) == (200, "loader"), got
        epoch = got.json()["epoch"]
        shown = await asked_elsewhere(two, "GET", ACCESS)
        assert (shown.status, shown.json()) == (200, got.json())
        freed = await asked_elsewhere(two, "DELETE", f"{ACCESS}?epoch={epoch}")
        assert freed.status == 204
        for path in (f"{PART}/explain?subscription=s", "/v1/explain/public/one?subscription=s"):
            told = await asked_elsewhere(two, "GET", path)
            assert told.status == 200, told
            found = told.json()
            assert found.get("partitions", [found])[0]["owner"] == "b0"
        loaded = await asked_elsewhere(
            two, "POST", "/v1/bulk-loads/q/batches/0/commit", json=BULK_LOAD
        )
        assert loaded.status == 200, loaded
        for path in (f"{PART}/unload?to=b1", f"{TOPIC}/unload?to=b1"):
            moved = await asked_elsewhere(two, "POST", path)
            assert moved.status == 200, moved
            found = moved.json()
            assert found.get("partitions", [found])[0]["from_broker"] == "b0"
