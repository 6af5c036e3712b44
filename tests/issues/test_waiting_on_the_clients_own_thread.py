"""The client's thread waited for itself: a callback that made a call of the client, and a loop over
messages that the collector found on that thread, stopped the client for ever.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import pytest

from octavo import Client
from octavo.client.errors import InvalidCall
from octavo.client.sync import Receipt
from tests.support.broker_thread import broker_thread


@pytest.mark.timeout(60)
def test_a_callback_must_not_wait() -> None:
    told: list[BaseException] = []
    over = threading.Event()

    with broker_thread() as broker, Client(broker.url) as client:

        def call(_: Receipt) -> None:
            try:
                client.publish("t", "y")
            except InvalidCall as error:
                told.append(error)
            over.set()

        client.create_topic("t")
        client.producer("t").send("x").add_done_callback(call)
        assert over.wait(20)
        assert "a callback" in str(told)
        assert client.publish("t", "z").offset == 1


@pytest.mark.timeout(60)
def test_the_collector_ends_a_loop_anywhere() -> None:
    def collect() -> None:
        gc.collect()

    with broker_thread() as broker, Client(broker.url) as client:
        client.create_topic("t")
        client.publish("t", "x")
        subscription = client.subscribe("t", "s", type="shared")
        cycle: list[Any] = [subscription.deliveries()]
        cycle.append(cycle)
        assert next(cycle[0]).value == b"x"
        gc.collect()
        gc.disable()
        try:
            del cycle
            client._thread.soon(collect)
            assert next(subscription.deliveries()).delivery_count == 2  # it was given back
        finally:
            gc.enable()


@pytest.mark.timeout(60)
def test_a_fork_has_no_part_in_the_loop_of_its_parent() -> None:
    """It went on with the messages that had been received, beside its parent."""
    with broker_thread() as broker, Client(broker.url) as client:
        client.create_topic("t")
        client.publish_many("t", [(None, "x")] * 3)
        found = client.subscribe("t", "s", type="shared").deliveries()
        assert next(found).offset == 0
        if not (child := os.fork()):
            status = 1
            try:
                next(found)
            except InvalidCall:
                client.close()  # of which nothing is here
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert next(found).offset == 1
