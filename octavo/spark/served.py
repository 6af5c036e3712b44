"""Reads pieces through a broker (`readFrom=broker`): stored batches over HTTP.

For clusters whose bookies cannot be reached from Spark's hosts. Any broker works: it asks the
partition's owner. The next answer is fetched while the current answer is used. A broker does not
tell a batch's entry, so it is set to -1, and the column `entry` is not available.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import aiohttp

from octavo.client.trust import connector
from octavo.credentials import bearer
from octavo.protocol.append_time import APPEND_TIME_HEADER, Times, readable
from octavo.protocol.batch import InvalidBatch, split_batches
from octavo.spark.batches import StoredBatch
from octavo.spark.splits import Piece
from octavo.spark.stored import NotServed

_BYTES_MAX = 8 * 2**20
_MESSAGES_MAX = 10_000
_ANSWER_S = 60.0
_INCARNATION = "Octavo-Incarnation"
"""The broker answers only for this incarnation, not for a later topic of the same name."""
_RECORD_BATCH = "application/vnd.kafka.recordbatch.v2"


async def served(service: str, piece: Piece) -> AsyncGenerator[list[StoredBatch]]:
    """Return the batches that hold the piece. Raises `NotServed`."""
    url = f"{service.rstrip('/')}/v1/topics/{piece.topic}/partitions/{piece.partition}/messages"
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    headers = bearer()
    if piece.incarnation:
        headers[_INCARNATION] = piece.incarnation
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, connector=connector()
    ) as session:
        ahead = asyncio.ensure_future(_ask(session, url, piece.start))
        try:
            while True:
                found = _cut(piece, *await ahead)
                reached = found[-1].base + found[-1].header.record_count
                if reached < piece.end:
                    ahead = asyncio.ensure_future(_ask(session, url, reached))
                yield found
                if reached >= piece.end:
                    return
        finally:
            ahead.cancel()


async def _ask(session: aiohttp.ClientSession, url: str, offset: int) -> tuple[bytes, str]:
    """Return the batches, and the header with their append times."""
    asked = {"from": str(offset), "max_bytes": str(_BYTES_MAX), "limit": str(_MESSAGES_MAX)}
    try:
        async with session.get(url, params=asked, headers={"Accept": _RECORD_BATCH}) as answer:
            if answer.status == 200:
                return await answer.read(), answer.headers.get(APPEND_TIME_HEADER, "")
            said = (await answer.text())[:300]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise NotServed(f"{url}: {str(error) or 'no answer in 60 s'}") from error
    raise NotServed(f"{url}?from={offset}: {answer.status} {said}".rstrip())


def _cut(piece: Piece, body: bytes, append_time: str) -> list[StoredBatch]:
    """Split an answer into batches and check each. Raises `NotServed`."""
    try:
        times = Times(append_time)
        found = [
            StoredBatch(
                piece.topic,
                piece.partition,
                piece.ledger_id,
                -1,
                header.base_offset,
                header,
                bytes(readable(header, data)),
            )
            for header, data in (
                (times.shown(served), data) for served, data in split_batches(body)
            )
        ]
    except InvalidBatch as error:
        raise NotServed(f"topic {piece.topic} partition {piece.partition}: {error}") from error
    if not found:
        raise NotServed(f"topic {piece.topic} partition {piece.partition}: the answer is empty")
    return found
