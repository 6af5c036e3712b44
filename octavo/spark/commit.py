"""The HTTP calls of a bulk load: commit and abort, from the driver to any broker.

Every call can be repeated safely. So a call without a clear answer is repeated, at another broker
if there is one, until the time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import msgspec

from octavo.client.trust import connector
from octavo.client.wire import CONNECT_TIMEOUT_S
from octavo.credentials import bearer
from octavo.metadata.gather_all import gather_all
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.secret import cluster_secret
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError
from octavo.spark.process_cache import ProcessCache
from octavo.spark.service import live_urls, metadata_of
from octavo.spark.sink_message import SinkFailed as SinkFailed

if TYPE_CHECKING:
    from octavo.spark.sink_message import Written
    from octavo.spark.sink_rows import Target

_GIVEN_UP_AT_ONCE = 5_000
"""Ledgers in a single call; a broker accepts twice as many."""
_PAUSE_S = 0.2
_PAUSE_S_MAX = 5.0
_ANSWER_S = 60.0
_AT_ONCE = 16
_JSON = "application/json"
TOKEN_HEADER = "Bulk-Load-Token"
_RECORD_BATCH = "application/vnd.kafka.recordbatch.v2"
CLUSTER_HEADER = "Bulk-Load-Cluster"


class _Proof(NamedTuple):
    """Proves that an id belongs to the jobs of a cluster, which `cluster` identifies."""

    token: str
    cluster: str


_proofs = ProcessCache[tuple[str, str], _Proof](64)
"""The proofs that this process has made, by service and id.

If another cluster has the service's address by now, its brokers refuse the call, because the proof
names its cluster. Otherwise they would bind the id to a token that no later process can make.
"""
_log = logging.getLogger("octavo.spark")


def parts_of(written: Iterable[Written]) -> list[dict[str, Any]]:
    """Return the body of a commit: ledgers by partition, in the order of the tasks."""
    found: dict[tuple[str, int], list[dict[str, int]]] = {}
    for one in written:
        found.setdefault((one.topic, one.partition), []).append(
            {
                "id": one.ledger_id,
                "messages": one.messages,
                "bytes": one.bytes,
                "first_ms": one.first_ms,
                "last_ms": one.last_ms,
                "disorder_ms": one.disorder_ms,
                **({"pieces": one.pieces} if one.pieces else {}),
            }
        )
    return [
        {"topic": topic, "partition": partition, "ledgers": ledgers}
        for (topic, partition), ledgers in found.items()
    ]


async def commit(
    service: str, bulk_load: str, batch: int, written: list[Written], timeout_ms: int
) -> bool:
    """Commit the ledgers. Returns False if the batch was committed before with other ledgers; then
    these ledgers are given up.

    Raises `SinkFailed`, also when the time is over; then the outcome may be unknown.
    """
    body = {"parts": parts_of(written)}
    async with _brokers(service, timeout_ms, bulk_load) as brokers:
        answer = await _next_in_order(brokers, bulk_load, batch, "commit", body)
    there = {ledger for part in answer["parts"] for ledger in part["ledgers"]}
    if not answer["repeated"] or all(one.ledger_id in there for one in written):
        return True  # the ledgers are there; a repeat may be of this call, whose answer was lost
    _log.warning("batch %d of %s was committed before; nothing is added", batch, bulk_load)
    await abort(service, bulk_load, batch, written, timeout_ms)
    return False


async def publish(
    service: str,
    bulk_load: str,
    batch: int,
    content: Mapping[Target, tuple[str, bytes]],
    timeout_ms: int,
) -> bool:
    """Publish record batches of an idempotent producer, each with its fingerprint, and commit.

    Returns False, and publishes nothing, if the batch was committed before. Raises `SinkFailed`;
    then a part may be visible already, and a repeat of the same batch completes it.
    """
    async with _brokers(service, timeout_ms, bulk_load) as brokers:
        parts = [{**target._asdict(), "content": words} for target, (words, _) in content.items()]
        began = await _next_in_order(brokers, bulk_load, batch, "begin", {"parts": parts})
        if began["repeated"]:
            _log.warning("batch %d of %s was committed before; nothing is added", batch, bulk_load)
            return False
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(target: Target, data: bytes) -> None:
            async with turn:
                path = f"topics/{target.topic}/partitions/{target.partition}/messages"
                await brokers.ask(path, data, _RECORD_BATCH)

        await gather_all(one(target, data) for target, (_, data) in content.items())
        body = {"parts": [], "published": True}
        done = await brokers.call(_path(bulk_load, batch, "commit"), body)
    _log.info(
        "batch %d of %s: %d partitions by the producer", done["batch"], bulk_load, len(content)
    )
    return True


async def abort(
    service: str, bulk_load: str, batch: int, written: list[Written], timeout_ms: int
) -> None:
    """Give ledgers up; a broker keeps committed ledgers. Never raises: ledgers left behind
    only take up space until `octavo pipeline gc` collects them."""
    if not written:
        return
    try:
        ids = [one.ledger_id for one in written]
        await give_up(service, bulk_load, batch, ids, timeout_ms)
    except OctavoError as error:
        _log.warning("ledgers of batch %d of %s stay behind: %s", batch, bulk_load, error)


async def give_up(
    service: str, bulk_load: str, batch: int, ledger_ids: list[int], timeout_ms: int
) -> list[int]:
    """Give ledgers up. Returns the deleted ledgers. Raises `SinkFailed`."""
    deleted: list[int] = []
    async with _brokers(service, timeout_ms, bulk_load) as brokers:
        for start in range(0, len(ledger_ids), _GIVEN_UP_AT_ONCE):
            some = ledger_ids[start : start + _GIVEN_UP_AT_ONCE]
            answer = await brokers.call(_path(bulk_load, batch, "abort"), {"ledgers": some})
            deleted += answer["ledgers"]
    return deleted


class _Brokers:
    """Repeats each call until it is answered, or until the time of all calls is over."""

    def __init__(self, service: str, session: aiohttp.ClientSession) -> None:
        self._service = service
        self._session = session
        self.why = "no broker is there"
        self.proof = _Proof("", "")

    async def call(self, path: str, body: Any) -> dict[str, Any]:
        """Call with a JSON body. Raises `SinkFailed` if a repeat would not help."""
        return await self.ask(path, msgspec.json.encode(body), _JSON)

    async def ask(self, path: str, data: bytes, content_type: str) -> dict[str, Any]:
        """Call as `call` does, with any body. An empty answer is returned as {}."""
        pauses = _pauses()
        urls = _own(self._service)
        while True:
            urls = urls or await _urls(self._service)
            if urls:
                answer = await self._ask_one(f"{urls.pop(0)}/v1/{path}", data, content_type)
                if answer is not None:
                    return answer
            await asyncio.sleep(pauses.next_s())

    async def _ask_one(self, url: str, data: bytes, content_type: str) -> dict[str, Any] | None:
        """Return the answer, or None to try again. Raises `SinkFailed`."""
        try:
            timeout = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=CONNECT_TIMEOUT_S)
            headers = {
                "Content-Type": content_type,
                TOKEN_HEADER: self.proof.token,
                CLUSTER_HEADER: self.proof.cluster,
            }
            async with self._session.post(
                url, data=data, headers=headers, timeout=timeout
            ) as response:
                found: dict[str, Any] = await response.json(content_type=None) or {}
                if response.status < 300:
                    return found
                self.why = str(found.get("detail", f"{url} answered {response.status}"))
                if not found.get("retryable"):
                    raise SinkFailed(self.why, found)
        except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError) as error:
            self.why = f"{url}: {error or type(error).__name__}"
        return None


@contextlib.asynccontextmanager
async def _brokers(service: str, timeout_ms: int, bulk_load: str) -> AsyncIterator[_Brokers]:
    """Give all calls within, repeats included, `timeout_ms` together. Raises `SinkFailed`."""
    async with aiohttp.ClientSession(connector=connector(), headers=bearer()) as session:
        brokers = _Brokers(service, session)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                brokers.proof = await _proof(brokers, service, bulk_load)
                yield brokers
        except SinkFailed:
            _proofs.drop((service, bulk_load))  # perhaps it is another cluster by now
            raise
        except TimeoutError:
            raise SinkFailed(
                f"no confirmation within {timeout_ms / 1000:g} s: {brokers.why}"
            ) from None


async def _next_in_order(
    brokers: _Brokers, bulk_load: str, batch: int, call: str, body: dict[str, Any]
) -> dict[str, Any]:
    """Call with a batch that is next in the query's own log, and return the answer.

    Brokers expect consecutive numbers, but here numbers may have gaps: the user chooses each
    `bulkLoadBatch`, Spark skips batches without tasks, and brokers may have forgotten an id. So
    after a refusal the call is repeated with the last number that the brokers know.
    """
    path = _path(bulk_load, batch, call)
    try:
        return await brokers.call(path, body)
    except SinkFailed as error:
        expected = error.problem.get("expected_batch")
        if not isinstance(expected, int) or expected >= batch:
            raise
        _log.info("%s goes on at batch %d; brokers expected %d", bulk_load, batch, expected)
        return await brokers.call(path, {**body, "after": expected - 1})


async def _proof(brokers: _Brokers, service: str, bulk_load: str) -> _Proof:
    """Return the proof of an id: the same every time.

    A stream commits one batch after another in the same process, so the proof is kept: otherwise
    each commit would connect to the metadata store.
    """
    if (known := _proofs.get((service, bulk_load))) is not None:
        return known
    pauses = _pauses()
    while True:
        try:
            async with metadata_of(service) as store:
                secret = await cluster_secret(store)
                # Keep the word of 0.1: existing ids are bound to a token made with it.
                token = secret.key(f"transaction {bulk_load}").hex()
                found = _Proof(token, await LedgerStore(store).instance_id())
                _proofs.put((service, bulk_load), found)
                return found
        except OctavoError as error:
            if not error.retryable:
                raise SinkFailed(str(error)) from error
            brokers.why = str(error)
        await asyncio.sleep(pauses.next_s())


def _pauses() -> Backoff:
    return Backoff(_PAUSE_S, _PAUSE_S_MAX, None)  # no jitter: only one driver calls


def _path(bulk_load: str, batch: int, call: str) -> str:
    return f"bulk-loads/{bulk_load}/batches/{batch}/{call}"


def _own(service: str) -> list[str]:
    return [service.rstrip("/")] if service.startswith(("http://", "https://")) else []


async def _urls(service: str) -> list[str]:
    """Return the service's URL, and the URLs of all brokers in the metadata store."""
    own = _own(service)
    try:
        async with metadata_of(service) as store:
            return [*own, *(url for url in await live_urls(store) if url not in own)]
    except OctavoError:
        return own
