"""The timed loops of a Python program with nats-py, and the calls to set them up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import nats
import uvloop
from nats.aio.client import Client as Connection
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from bench.peers.contract import VALUE, WARM_S
from bench.peers.figures import Failed, Stopwatch, latencies

CONSUMER = "peers"
WINDOW = 1_000
"""Unacked messages in `produce`."""
_PAGE = 500
_PENDING_MAX = 100_000
_ANSWER_S = 60.0


@contextlib.asynccontextmanager
async def connected(urls: list[str]) -> AsyncIterator[Connection]:
    async def ignore(_: Exception) -> None:
        """Ignore errors here, as the calls raise them."""

    connection = await nats.connect(
        urls, connect_timeout=5, allow_reconnect=False, dont_randomize=True, error_cb=ignore
    )
    try:
        yield connection
    finally:
        await connection.close()


async def create(urls: list[str], topic: str) -> None:
    async with connected(urls) as connection:
        config = StreamConfig(
            name=topic, subjects=[topic], num_replicas=3, storage=StorageType.FILE
        )
        await connection.jetstream().add_stream(config)


async def drop(urls: list[str], topic: str) -> None:
    async with connected(urls) as connection:
        await connection.jetstream().delete_stream(topic)


async def leader(urls: list[str], topic: str) -> str:
    async with connected(urls) as connection:
        found = (await connection.jetstream().stream_info(topic)).cluster
        if found is None or not found.leader:
            raise Failed(f"stream {topic} has no leader")
        return found.leader


async def add_consumer(urls: list[str], topic: str) -> None:
    """Return when the consumer has a leader: an earlier fetch would fail with 503."""
    async with connected(urls) as connection:
        stream = connection.jetstream()
        config = ConsumerConfig(durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT)
        found = await stream.add_consumer(topic, config)
        while found.cluster is None or not found.cluster.leader:
            await asyncio.sleep(0.05)
            found = await stream.consumer_info(topic, CONSUMER)


def produce(job: dict[str, Any]) -> dict[str, Any]:
    return uvloop.run(_produce(job))


async def _produce(job: dict[str, Any]) -> dict[str, Any]:
    watch = Stopwatch()
    failed: list[str] = []

    def done(answer: asyncio.Future[Any]) -> None:
        if answer.exception() is not None:
            failed.append(repr(answer.exception()))

    async with connected([job["url"]]) as connection:
        stream = connection.jetstream(publish_async_max_pending=WINDOW)
        for _ in range(job["messages"]):
            (await stream.publish_async(job["topic"], VALUE)).add_done_callback(done)
        await asyncio.wait_for(stream.publish_async_completed(), _ANSWER_S)
    if failed:
        raise Failed(f"{len(failed)} messages refused: {failed[0]}")
    return watch.figures(job["messages"])


def consume(job: dict[str, Any]) -> dict[str, Any]:
    return uvloop.run(_consume(job))


async def _consume(job: dict[str, Any]) -> dict[str, Any]:
    watch, count = Stopwatch(), 0
    async with connected([job["url"]]) as connection:
        stream = connection.jetstream()
        subscription = await stream.pull_subscribe_bind(CONSUMER, job["topic"])
        while count < job["messages"]:
            page = await subscription.fetch(min(_PAGE, job["messages"] - count), timeout=_ANSWER_S)
            if not count:
                watch.first()
            for message in page:
                await message.ack()
            count += len(page)
        deadline = time.perf_counter() + _ANSWER_S
        while (await subscription.consumer_info()).num_ack_pending:
            if time.perf_counter() > deadline:
                raise Failed(f"acks not taken after {_ANSWER_S:.0f} s")
    return watch.figures(count)


def single(job: dict[str, Any]) -> dict[str, Any]:
    return uvloop.run(_single(job))


async def _single(job: dict[str, Any]) -> dict[str, Any]:
    took_s: list[float] = []
    failed: list[str] = []

    def done(due_s: float, answer: asyncio.Future[Any]) -> None:
        if answer.exception() is not None:
            failed.append(repr(answer.exception()))
        took_s.append(time.perf_counter() - due_s)

    rate, acked, held = job["rate"], 0, 0.0
    async with connected([job["url"]]) as connection:
        stream = connection.jetstream(publish_async_max_pending=_PENDING_MAX)
        for phase_s in (WARM_S, job["seconds"]):
            took_s.clear()
            begin, sent, total = time.perf_counter(), 0, int(rate * phase_s)
            while sent < total:
                now = time.perf_counter()
                while sent < total and begin + sent / rate <= now:
                    answer = await stream.publish_async(job["topic"], VALUE)
                    answer.add_done_callback(partial(done, begin + sent / rate))
                    sent += 1
                await asyncio.sleep(max(0.0002, begin + sent / rate - time.perf_counter()))
            await asyncio.wait_for(stream.publish_async_completed(), _ANSWER_S)
            await asyncio.sleep(0)  # let the callback of the last answer run
            held = total / (time.perf_counter() - begin)
            acked += total
            if failed or len(took_s) < total:
                raise Failed(f"{len(took_s)} answers of {total}, refused: {failed[:1]}")
    return {"acked": acked, "held": round(held), **latencies(took_s)}
