"""A small broker for tests of the client: real HTTP, Kafka's sequence rules, and faults.
Before each publish it calls `fault` for the fault to inject."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable

from aiohttp import web

from octavo.protocol.batch import check_batch
from octavo.protocol.records import Record, read_records

Fault = Callable[[], str | None]
"""None, or: `drop` (connection lost, nothing stored), `store-drop` (stored, then lost), `503`,
`504` (stored, outcome unknown), `422` (refused for good), `late` (answers after a pause),
`slow` (stored, answered after other brokers were asked three times for the owner), `hang`
(stored, never answered)."""


class FakeBroker:
    """Two or more may share one `log`, as brokers share bookies."""

    def __init__(self, partitions: int, log: SharedLog | None = None) -> None:
        self.log = log or SharedLog(partitions)
        self.fault: Fault = lambda: None
        self.requests: list[tuple[str, str]] = []
        self.owner_header: str | None = None
        self.url = ""
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        body = await request.read()
        parts = request.path.strip("/").split("/")
        if request.method == "GET" and len(parts) == 4:
            settings = {"partitions": len(self.log.partitions)}
            return self._reply({"name": f"{parts[2]}/{parts[3]}", "settings": settings})
        if request.method == "GET" and len(parts) == 6:
            self.log.asked_owner += 1
            return self._reply({"partition": int(parts[5])})
        if request.method == "DELETE" and not self.log.deleted:
            self.log.deleted = True
            return self._cut(request) if self.fault() == "store-drop" else web.Response(status=204)
        if request.method == "POST" and parts[-1] == "messages":
            return await self._publish(request, int(parts[5]), body)
        return self._problem(404, "not-found", retryable=False)

    async def _publish(
        self, request: web.BaseRequest, partition: int, body: bytes
    ) -> web.StreamResponse:
        fault = self.fault()
        if fault == "drop":
            return self._cut(request)
        if fault == "503":
            return self._problem(503, "partition-moving", retryable=True)
        if fault == "422":
            return self._problem(422, "invalid-batch", retryable=False)
        if request.headers.get("Content-Type") == "application/x-ndjson":
            records = [_record_of(line) for line in body.splitlines()]
            who = tuple(int(request.headers[f"Producer-{name}"]) for name in ("Id", "Epoch", "Seq"))
        else:
            header = check_batch(body)
            records = list(read_records(body))
            who = (header.producer_id, header.producer_epoch, header.base_sequence)
        outcome = self.log.store(partition, (who[0], who[1], who[2]), records)
        if fault == "store-drop":
            return self._cut(request)
        if fault == "504":
            return self._problem(504, "outcome-unknown", retryable=True)
        while fault == "hang" or (fault == "slow" and self.log.asked_owner < 3):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if fault == "late":
            await asyncio.sleep(0.02)
        if isinstance(outcome, str):
            status = 403 if outcome == "stale-producer-epoch" else 409
            expected = self.log.expected(partition, who[0])
            return self._problem(status, outcome, retryable=False, expected_sequence=expected)
        if outcome < 0:
            return web.Response(status=204, headers=self._headers())
        last = outcome + len(records) - 1
        return self._reply(
            {
                "count": len(records),
                "first": {"partition": partition, "offset": outcome, "id": f"7:{outcome}:0"},
                "last": {
                    "partition": partition,
                    "offset": last,
                    "id": f"7:{outcome}:{len(records) - 1}",
                },
            }
        )

    def _cut(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _headers(self) -> dict[str, str]:
        return {"Octavo-Owner": self.owner_header or self.url}

    def _reply(self, found: object) -> web.Response:
        return web.json_response(found, headers=self._headers())

    def _problem(self, status: int, code: str, *, retryable: bool, **extra: object) -> web.Response:
        return web.json_response(
            {"code": code, "retryable": retryable, "detail": f"as asked: {code}", **extra},
            status=status,
            headers=self._headers(),
            content_type="application/problem+json",
        )


class SharedLog:
    def __init__(self, partitions: int) -> None:
        self.partitions: list[list[Record]] = [[] for _ in range(partitions)]
        self.deleted = False
        self.asked_owner = 0
        self._next: dict[tuple[int, int], tuple[int, int]] = {}

    def expected(self, partition: int, producer: int) -> int:
        return self._next.get((partition, producer), (0, 0))[1]

    def store(self, partition: int, who: tuple[int, int, int], records: list[Record]) -> int | str:
        """Return the first offset, -1 for a duplicate, or the code of a refusal."""
        producer, epoch, sequence = who
        known_epoch, expected = self._next.get((partition, producer), (epoch, 0))
        if epoch < known_epoch:
            return "stale-producer-epoch"
        if epoch > known_epoch:
            expected = 0
        if sequence + len(records) <= expected:
            return -1
        if sequence != expected:
            return "sequence-gap"
        self._next[partition, producer] = (epoch, sequence + len(records))
        first = len(self.partitions[partition])
        self.partitions[partition] += records
        return first


def _record_of(line: bytes) -> Record:
    found = json.loads(line)
    key = found.get("key")
    encoded = found.get("value_base64")
    value = base64.b64decode(encoded) if encoded else json.dumps(found["value"]).encode()
    return Record(key.encode() if key else None, value)
