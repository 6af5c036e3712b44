"""The timed loops of a Python program with confluent-kafka."""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer

from bench.peers.contract import VALUE, WARM_S
from bench.peers.figures import Failed, Stopwatch, latencies

IDLE_S = 20.0
_FLUSH_S = 60.0
_CALL_S = 0.005
_PAGE = 500
_POLL_EVERY = 1_000


def produce(job: dict[str, Any]) -> dict[str, Any]:
    """With `batch.size` 64 KB the rate is only a third to a half."""
    watch = Stopwatch()
    producer = Producer(
        {
            "bootstrap.servers": job["servers"],
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "delivery.report.only.error": True,
        }
    )
    failed: list[str] = []

    def done(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    topic, messages = job["topic"], job["messages"]
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, VALUE, on_delivery=done)
                break
            except BufferError:  # 100,000 messages wait: the library's default bound
                producer.poll(_CALL_S)
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    left = producer.flush(_FLUSH_S)
    if left or failed:
        raise Failed(f"{left} messages not sent, {len(failed)} refused: {failed[:1]}")
    return watch.figures(messages)


def consume(job: dict[str, Any]) -> dict[str, Any]:
    watch, count = Stopwatch(), 0
    consumer = Consumer(
        {
            "bootstrap.servers": job["servers"],
            "group.id": f"{job['group']}-{job['topic']}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # By default fetching pauses for 1 s once 100,000 messages wait in the library.
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe([job["topic"]])
    last = time.perf_counter()
    while count < job["messages"]:
        # A request for more messages than are left would wait the whole second.
        page = consumer.consume(min(_PAGE, job["messages"] - count), 1.0)
        for message in page:
            if message.error():
                raise Failed(str(message.error()))
            if not count:
                watch.first()
            count += 1
        if page:
            last = time.perf_counter()
        elif time.perf_counter() - last > IDLE_S:
            raise Failed(f"{count} messages of {job['messages']}, then none for {IDLE_S:.0f} s")
    consumer.commit(asynchronous=False)
    return watch.figures(count)  # without the time to leave the group


def single(job: dict[str, Any]) -> dict[str, Any]:
    sys.setswitchinterval(0.0005)
    producer = Producer(
        {
            "bootstrap.servers": job["servers"],
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "socket.nagle.disable": True,
        }
    )
    took_s: list[float] = []
    failed: list[str] = []
    ending = threading.Event()

    def done(due_s: float, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))
        took_s.append(time.perf_counter() - due_s)

    def take_answers() -> None:
        while not ending.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=take_answers)
    thread.start()
    try:
        acked = 0
        for phase_s in (WARM_S, job["seconds"]):
            took_s.clear()
            total = int(job["rate"] * phase_s)
            begin = time.perf_counter()
            for number in range(total):
                due_s = begin + number / job["rate"]
                wait_s = due_s - time.perf_counter()
                if wait_s > 0:
                    time.sleep(wait_s)
                producer.produce(job["topic"], VALUE, on_delivery=partial(done, due_s))
            deadline = time.perf_counter() + _FLUSH_S
            while len(took_s) < total and time.perf_counter() < deadline:
                time.sleep(0.01)
            held = total / (time.perf_counter() - begin)
            acked += total
            if failed or len(took_s) < total:
                raise Failed(f"{len(took_s)} answers of {total}, refused: {failed[:1]}")
    finally:
        ending.set()
        thread.join()
    return {"acked": acked, "held": round(held), **latencies(took_s)}
