"""Times, sizes and ids beyond what a record can hold were answered with 500."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from tests.support.fake_broker import running

TOPIC = "/v1/topics/public/one"
LEDGER = {"id": 7, "messages": 3, "bytes": 90, "first_ms": 1, "last_ms": 2}
BULK_LOAD = "/v1/bulk-loads/t/batches/0"


def part(**changes: Any) -> dict[str, Any]:
    return {"parts": [{"topic": "one", "partition": 0, "ledgers": [LEDGER], **changes}]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", TOPIC, {"retention": {"time": "999999999999d"}}),
        ("PUT", TOPIC, {"retention": {"size": "999999999999TB"}}),
        ("PUT", TOPIC, {"rollover": {"time": "999999999999d"}}),
        ("PUT", TOPIC, {"rollover": {"size": "999999999999TiB"}}),
        ("PUT", TOPIC, {"rollover": {"entries": 2**63}}),
        ("POST", f"{BULK_LOAD}/abort", {"ledgers": [-1]}),
        ("POST", f"{BULK_LOAD}/abort", {"ledgers": [10**23]}),
        ("POST", f"{BULK_LOAD}/abort", {"ledgers": [7] * 100_000}),
        ("POST", f"{BULK_LOAD}/commit", part(partition=-1)),
        ("POST", f"{BULK_LOAD}/commit", part(partition=10**12)),
        ("POST", f"{BULK_LOAD}/commit", part(ledgers=[{**LEDGER, "id": -1}])),
        ("POST", f"{BULK_LOAD}/commit", part(ledgers=[{**LEDGER, "messages": 10**23}])),
        ("POST", f"{BULK_LOAD}/commit", part(ledgers=[{**LEDGER, "last_ms": 10**23}])),
        ("POST", f"{BULK_LOAD}/commit", part(ledgers=[LEDGER] * 4_001)),
        ("POST", f"{BULK_LOAD}/begin",
         {"parts": [{"topic": "one", "partition": -1, "content": "x"}]}),
        ("POST", f"{TOPIC}/subscriptions/s/ack", {"up_to": "9" * 5_000}),
        ("POST", f"{TOPIC}/subscriptions/s/ack", {"up_to": 10**30}),
    ],
)  # fmt: skip
async def test_refused_with_what_was_wrong(method: str, path: str, body: dict[str, Any]) -> None:
    async with running(1) as one:
        if path != TOPIC:
            assert (await one.api.put(TOPIC)).status == 201
            assert (await one.api.put(f"{TOPIC}/subscriptions/s")).status == 201
        answer = await one.api.call(method, path, json=body)
        assert answer.status in (400, 422), answer
        assert answer.json()["detail"]


async def test_millions_of_blank_lines_are_not_read_to_their_end() -> None:
    async with running(1) as one:
        assert (await one.api.put(TOPIC)).status == 201
        answer = await one.api.post(
            f"{TOPIC}/messages",
            gzip.compress(b'{"value":1}\n' + b"\n" * 130_000_000, compresslevel=1),
            headers={"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"},
        )
        assert answer.status in (413, 422), answer
        assert answer.json()["stored"]["count"] == 1
