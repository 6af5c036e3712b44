"""The timed loops of a Python program with pulsar-client."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pulsar

from bench.peers.contract import VALUE, WARM_S
from bench.peers.figures import Failed, Stopwatch, latencies

PENDING_MAX = 100_000
_PAGE = 500
_PAGE_MS = 100
_IDLE_S = 20.0
_ANSWER_S = 60.0


def produce(job: dict[str, Any]) -> dict[str, Any]:
    watch = Stopwatch()
    client = _client(job)
    producer = _producer(client, job, delay_ms=5)
    failed: list[str] = []

    def done(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(str(result))

    for _ in range(job["messages"]):
        producer.send_async(VALUE, done)
    producer.flush()
    if failed:
        raise Failed(f"{len(failed)} messages refused: {failed[0]}")
    figures = watch.figures(job["messages"])
    client.close()
    return figures


def consume(job: dict[str, Any]) -> dict[str, Any]:
    watch, count = Stopwatch(), 0
    client = _client(job)
    consumer = client.subscribe(
        job["topic"],
        job["group"],
        consumer_type=pulsar.ConsumerType.Shared,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(_PAGE, -1, _PAGE_MS),
    )
    last = time.perf_counter()
    while count < job["messages"]:
        page = consumer.batch_receive()
        for message in page:
            consumer.acknowledge(message)
        if page:
            if not count:
                watch.first()
            count += len(page)
            last = time.perf_counter()
        elif time.perf_counter() - last > _IDLE_S:
            raise Failed(f"{count} messages of {job['messages']}, then none for {_IDLE_S:.0f} s")
    consumer.close()  # sends the last acks
    figures = watch.figures(count)
    client.close()
    return figures


def single(job: dict[str, Any]) -> dict[str, Any]:
    sys.setswitchinterval(0.0005)
    client = _client(job)
    producer = _producer(client, job, delay_ms=1)
    took_s: list[float] = []
    failed: list[str] = []

    def done(due_s: float, result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(str(result))
        took_s.append(time.perf_counter() - due_s)

    acked, held = 0, 0.0
    for phase_s in (WARM_S, job["seconds"]):
        took_s.clear()
        total = int(job["rate"] * phase_s)
        held = _at_rate(job["rate"], total, took_s, partial(_send, producer, done))
        acked += total
        if failed or len(took_s) < total:
            raise Failed(f"{len(took_s)} answers of {total}, refused: {failed[:1]}")
    figures = latencies(took_s)
    client.close()
    return {"acked": acked, "held": round(held), **figures}


def _at_rate(rate: int, total: int, took_s: list[float], send: Callable[[float], None]) -> float:
    begin = time.perf_counter()
    for number in range(total):
        due_s = begin + number / rate
        wait_s = due_s - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        send(due_s)
    deadline = time.perf_counter() + _ANSWER_S
    while len(took_s) < total and time.perf_counter() < deadline:
        time.sleep(0.01)
    return total / (time.perf_counter() - begin)


def _send(producer: pulsar.Producer, done: Callable[..., None], due_s: float) -> None:
    producer.send_async(VALUE, partial(done, due_s))


def _client(job: dict[str, Any]) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(job["url"], logger=quiet)


def _producer(client: pulsar.Client, job: dict[str, Any], *, delay_ms: int) -> pulsar.Producer:
    return client.create_producer(
        job["topic"],
        block_if_queue_full=True,
        max_pending_messages=PENDING_MAX,
        max_pending_messages_across_partitions=PENDING_MAX,
        batching_enabled=True,
        batching_max_publish_delay_ms=delay_ms,
    )
