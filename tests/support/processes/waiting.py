"""Conditions that tests of real clusters wait for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from octavo import AsyncClient
from tests.support.processes.chaos import BOOKIES, BROKERS
from tests.support.processes.failpoints import lines
from tests.support.processes.users import TOPIC, Record

DEADLINE_S = 60.0


async def more_acked(record: Record, count: int, timeout_s: float = DEADLINE_S) -> None:
    goal = record.acked + count
    async with asyncio.timeout(timeout_s):
        while record.acked < goal:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def everybody_registered(urls: list[str]) -> None:
    async with AsyncClient(urls) as client, asyncio.timeout(DEADLINE_S):
        while len(await client.bookies()) < BOOKIES or len(await client.brokers()) < BROKERS:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def owners_of(urls: list[str]) -> list[tuple[str, int]]:
    """Wait until each partition is served; return its owner and its number of take-overs."""
    async with AsyncClient(urls) as client, asyncio.timeout(DEADLINE_S):
        while True:
            stats = (await client.topic(TOPIC)).stats["partitions"]
            if all(one.get("owner") for one in stats):
                return [(one["owner"], one["epoch"]) for one in stats]
            await asyncio.sleep(0.05)


async def more_lines(path: Path, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while len(lines(path)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
