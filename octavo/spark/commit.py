"""The driver's side of a transaction: commit and abort by any broker, over HTTP.

Both calls may be repeated as they stand, so what is not known to have failed is asked again, at
another broker if there is one, until the time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Any

import aiohttp

from octavo.spark.cluster import connected
from octavo.spark.sink_ledgers import Written
from protocol.codes import OctavoError

_PAUSE_S = 0.2
_PAUSE_S_MAX = 5.0
_ANSWER_S = 60.0
_log = logging.getLogger("octavo.spark")


class SinkFailed(OctavoError):
    """A batch could not be committed. The message has the broker's reason."""

    name = "sink-failed"


def parts_of(written: Iterable[Written]) -> list[dict[str, Any]]:
    """The body of a commit: ledgers by partition, in the order of the tasks."""
    found: dict[tuple[str, int], list[dict[str, int]]] = {}
    for one in written:
        found.setdefault((one.topic, one.partition), []).append(
            {
                "id": one.ledger_id,
                "messages": one.messages,
                "bytes": one.bytes,
                "first_ms": one.first_ms,
                "last_ms": one.last_ms,
            }
        )
    return [
        {"topic": topic, "partition": partition, "ledgers": ledgers}
        for (topic, partition), ledgers in found.items()
    ]


async def commit(
    service: str, transaction: str, batch: int, written: list[Written], timeout_ms: int
) -> bool:
    """Commit; False when the batch was committed before, with other ledgers: these are given up.

    Raises `SinkFailed`: also when the time is over, and the outcome may be unknown.
    """
    body = {"parts": parts_of(written)}
    answer = await _ask(service, f"{transaction}/batches/{batch}/commit", body, timeout_ms)
    there = {ledger for part in answer["parts"] for ledger in part["ledgers"]}
    if not answer["repeated"] or all(one.ledger_id in there for one in written):
        return True  # also when it was this very call, whose first answer was lost
    _log.warning("batch %d of %s was committed before; nothing is added", batch, transaction)
    await abort(service, transaction, batch, written, timeout_ms)
    return False


async def abort(
    service: str, transaction: str, batch: int, written: list[Written], timeout_ms: int
) -> None:
    """Give ledgers up. Those that are committed all the same are kept. Never raises: what is left
    behind costs space until orphans are collected, nothing else."""
    if not written:
        return
    try:
        ids = [one.ledger_id for one in written]
        await give_up(service, transaction, batch, ids, timeout_ms)
    except OctavoError as error:
        _log.warning("ledgers of batch %d of %s stay behind: %s", batch, transaction, error)


async def give_up(
    service: str, transaction: str, batch: int, ledger_ids: list[int], timeout_ms: int
) -> list[int]:
    """Give ledgers up; those that were deleted. Raises `SinkFailed`."""
    call = f"{transaction}/batches/{batch}/abort"
    deleted: list[int] = (await _ask(service, call, {"ledgers": ledger_ids}, timeout_ms))["ledgers"]
    return deleted


async def _ask(service: str, call: str, body: Any, timeout_ms: int) -> dict[str, Any]:
    why = "no broker is there"
    pause_s = _PAUSE_S
    urls = _own(service)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_ms / 1000), aiohttp.ClientSession() as session:
            while True:
                urls = urls or await _urls(service)
                if urls:
                    url = urls.pop(0)
                    answer, why = await _ask_one(session, f"{url}/v1/transactions/{call}", body)
                    if answer is not None:
                        return answer
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
    raise SinkFailed(f"not known to be done within {timeout_ms / 1000:g} s: {why}")


async def _ask_one(
    session: aiohttp.ClientSession, url: str, body: Any
) -> tuple[dict[str, Any] | None, str]:
    """The answer, or why to ask again. Raises `SinkFailed` when that would not help."""
    try:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with session.post(url, json=body, timeout=timeout) as response:
            found: dict[str, Any] = await response.json(content_type=None)
            if response.status < 300:
                return found, ""
            why = str(found.get("detail", f"{url} answered {response.status}"))
            if not found.get("retryable"):
                raise SinkFailed(why)
            return None, why
    except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError) as error:
        return None, f"{url}: {error or type(error).__name__}"


def _own(service: str) -> list[str]:
    return [service.rstrip("/")] if service.startswith(("http://", "https://")) else []


async def _urls(service: str) -> list[str]:
    """The service itself, and the brokers that the metadata knows."""
    own = _own(service)
    try:
        async with connected(service) as cluster:
            return [*own, *(url for url in await cluster.broker_urls() if url not in own)]
    except OctavoError:
        return own
