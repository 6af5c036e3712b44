"""`octavo consume --follow` as a script uses it: each line at once, through a killed owner."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from octavo import Client
from tests.support.processes.standalone import OCTAVO, Standalone, environment, standalone

LINE_S = 20.0
UNMATCHED = "namespace public shows no topic that matches later-*"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("consume") / "data"
    with standalone(folder, "--session-timeout-ms", "2000") as one:
        yield one


class Consuming:
    def __init__(self, running: Standalone, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*OCTAVO, "consume", *arguments, "--follow", "--json", "--data", str(running.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(), "PYTHONUNBUFFERED": ""},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Consuming:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def values(self, count: int) -> list[Any]:
        return [json.loads(self._lines.get(timeout=LINE_S))["value"] for _ in range(count)]

    def interrupted(self) -> str:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(10) == 0
        assert self.process.stderr is not None
        assert self._lines.empty()
        return self.process.stderr.read()


@pytest.mark.long
@pytest.mark.parametrize("subscription", [None, "billing"])
def test_each_line_at_once_through_a_killed_owner(
    running: Standalone, subscription: str | None
) -> None:
    topic = f"f-{subscription or 'plain'}"
    how = ["--subscription", subscription] if subscription else []
    with Client(running.cluster.urls) as client:
        client.create_topic(topic)
        client.publish(topic, 0)
        with Consuming(running, topic, *how) as consuming:
            assert consuming.values(1) == [0]
            client.publish(topic, 1)
            assert consuming.values(1) == [1], "it is not kept until there is more"
            owner = client.topic(topic).stats["partitions"][0]["owner"]
            name = next(one["id"] for one in client.brokers() if owner in (one["id"], one["url"]))
            running.kill(name)
            for number in range(2, 12):
                client.publish(topic, number)
            values = consuming.values(10)
            if subscription:  # Leased messages come again when their owner dies.
                again = len({0, 1}.intersection(values))
                values = sorted({*values, *consuming.values(again)} - {0, 1})
            assert values == [*range(2, 12)]
            said = consuming.interrupted()
        assert "messages" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("group", [pytest.param([], marks=pytest.mark.long), ["--group"]])
def test_a_pattern_that_matches_nothing_yet(running: Standalone, group: list[str]) -> None:
    how = ["later-*", "-s", "billing", *group]
    at_once = subprocess.run(
        [*OCTAVO, "consume", *how, "--json", "--data", str(running.folder)],
        capture_output=True, text=True, env=environment(), check=True, timeout=LINE_S,
    )  # fmt: skip
    assert at_once.stdout == ""
    assert at_once.stderr.splitlines() == [UNMATCHED, "0 messages"]
    topic = "later-" + ("shared" if group else "alone")
    with Client(running.cluster.urls) as client:
        with Consuming(running, *how) as consuming:
            assert consuming.process.stderr is not None
            assert (
                consuming.process.stderr.readline()
                == f"{UNMATCHED}; waiting for one (Ctrl-C ends)\n"
            )
            client.create_topic(topic)
            client.publish(topic, 0)
            assert consuming.values(1) == [0]
            assert UNMATCHED not in consuming.interrupted()
        client.delete_topic(topic)
