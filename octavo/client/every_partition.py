"""Read all partitions of a topic: one after the other to their ends, or follow all at once.

A follower joins partitions that are added, from their first message on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any

from octavo.client.errors import ApiError, ClientError, InvalidCall
from octavo.client.incarnation import Incarnation
from octavo.client.transport import Transport
from octavo.client.types import Message, TopicName
from octavo.protocol.numbers import whole

LOOK_AGAIN_S = 30.0
Pages = AsyncGenerator[list[Message], None]


async def starts_of(
    transport: Transport,
    topic: TopicName,
    start: str | int,
    *,
    of: Incarnation,
    compacted: bool = False,
) -> dict[int, str | int]:
    """Return where reading begins, for each partition.

    Raises `InvalidCall` if `start` is a place in a single partition and there are several.
    """
    is_place = is_within_one(start)
    found = await _offsets(
        transport, topic, "latest" if is_place or start == "earliest" else start,
        of=of, compacted=compacted,
    )  # fmt: skip
    if is_place and len(found) > 1:
        raise one_of(topic, len(found), f"{start} is a place in a single partition")
    # Keep `earliest` as text: an offset would fail if retention removes it before the first read.
    as_it_is = is_place or start == "earliest"
    return {number: start if as_it_is else offset for number, offset in found.items()}


async def only_partition(
    transport: Transport, topic: TopicName, at: str | int, *, of: Incarnation
) -> int:
    found = await _offsets(transport, topic, at, of=of)
    if len(found) > 1:
        raise one_of(topic, len(found), "each has its own offsets")
    return found[0]


def is_within_one(start: str | int) -> bool:
    if isinstance(start, int):
        return True
    numbers = [whole(part) for part in start.split(":")]
    return None not in numbers and len(numbers) in (1, 3)


def one_of(topic: TopicName, count: int, why: str) -> InvalidCall:
    return InvalidCall(
        f"{topic} has {count} partitions, and {why}: say which partition, 0 to {count - 1}"
    )


def where_one_is_needed(topic: TopicName, error: ApiError, why: str) -> ClientError:
    count = error.problem.get("partitions")
    if error.code == "partition-required" and isinstance(count, int):
        return one_of(topic, count, why)
    return error


async def _offsets(
    transport: Transport,
    topic: TopicName,
    at: str | int,
    *,
    of: Incarnation,
    compacted: bool = False,
) -> dict[int, int]:
    answer = await transport.call(
        "GET",
        f"/v1/topics/{topic}/offsets",
        query={"at": at, "compacted": "true" if compacted else None},
        of=of,
    )
    return {int(one["partition"]): int(one["offset"]) for one in answer.json()["offsets"]}


async def first_of(reads: list[Coroutine[Any, Any, list[Message]]]) -> list[Message]:
    tasks = [asyncio.create_task(one) for one in reads]
    try:
        for found in asyncio.as_completed(tasks):
            if messages := await found:
                return messages
        return []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def one_after_another(sources: Mapping[int, Pages]) -> Pages:
    for _, source in sorted(sources.items()):
        async with aclosing(source) as found:
            async for page in found:
                yield page


async def all_at_once(
    sources: Mapping[int, Pages], more: Callable[[set[int]], Awaitable[Mapping[int, Pages]]]
) -> Pages:
    """Yield pages as they arrive, at most one of each partition in advance; raise the first error.

    `more` is asked every `LOOK_AGAIN_S` for new partitions.
    """
    ready: asyncio.Queue[tuple[list[Message], asyncio.Event] | BaseException] = asyncio.Queue()
    tasks: dict[asyncio.Task[None], int] = {}

    def begin(found: Mapping[int, Pages]) -> None:
        for number, source in found.items():
            task = asyncio.create_task(_pump(source, ready), name=f"follow partition {number}")
            tasks[task] = number

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            with suppress(ClientError):  # if it lasts, the readers raise it
                begin(await more(set(tasks.values())))

    begin(sources)
    looking = asyncio.create_task(look(), name="look for more partitions")
    try:
        while True:
            found = await ready.get()
            if isinstance(found, BaseException):
                raise found
            page, taken = found
            yield page
            taken.set()
    finally:
        looking.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(looking, *tasks, return_exceptions=True)


async def _pump(
    source: Pages, ready: asyncio.Queue[tuple[list[Message], asyncio.Event] | BaseException]
) -> None:
    try:
        async with aclosing(source) as found:
            async for page in found:
                taken = asyncio.Event()
                ready.put_nowait((page, taken))
                await taken.wait()
    except Exception as error:
        ready.put_nowait(error)
