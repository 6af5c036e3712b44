"""Clients that nobody closed kept a thread and their connections for ever, each of them."""

from __future__ import annotations

import gc
import threading
import time

from octavo import Client
from tests.support.broker_thread import broker_thread


def client_threads() -> int:
    return sum(one.name == "octavo-client" for one in threading.enumerate())


def until_none_is_left() -> None:
    deadline = time.monotonic() + 10
    while client_threads():
        assert time.monotonic() < deadline, threading.enumerate()
        gc.collect()
        time.sleep(0.01)


def test_a_client_ends_with_the_last_who_has_it() -> None:
    with broker_thread() as broker:
        for _ in range(20):
            Client(broker.url).create_topic("t")
        until_none_is_left()

        receipt = Client(broker.url).producer("t").send("x")
        gc.collect()
        assert receipt.result().offset == 0
        messages = Client(broker.url).messages("t")
        assert next(messages).value == b"x"
        gc.collect()
        assert not [*messages]
        del receipt, messages
        until_none_is_left()


def test_what_its_producer_had_is_sent() -> None:
    with broker_thread() as broker:
        Client(broker.url).create_topic("t")
        Client(broker.url).producer("t", linger_ms=60_000).send("x")
        until_none_is_left()
        assert broker.values() == [b"x"]
