"""A follower of a topic into a table is killed a hundred times, and the table is exact."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="needs octavo[tables]")

from octavo import Client
from octavo.pipeline.table import TableOptions, table
from octavo.pipeline.table_iceberg import Place, catalog_of
from tests.support.processes.standalone import environment, standalone
from tests.support.published import known_end

KILLS = 100
STEPS_MAX = 24
ENDED = f"ended {-signal.SIGKILL}"
SEED = 33
TOPIC = "flights"


class Publisher:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, name="publisher")

    def _run(self) -> None:
        with self._client.producer(TOPIC, batch_bytes=600) as producer:
            while not self._stop.wait(0.02):
                for _ in range(8):
                    producer.send(b"m%d" % self.count, key=b"k%d" % (self.count % 50))
                    self.count += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(60)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_a_follower_is_killed_a_hundred_times(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    to = tmp_path / "lake"
    place = Place(str(to), "public", TOPIC)
    with standalone(tmp_path / "data") as cluster, Client(cluster.cluster.urls[0]) as client:
        service = cluster.cluster.urls[0]
        client.create_topic(TOPIC, partitions=3)
        publisher = Publisher(client)
        steps: Counter[str] = Counter()
        runs = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.table_runs", service, TOPIC, str(to)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
            start_new_session=True,
        )  # fmt: skip
        assert runs.stdin is not None
        assert runs.stdout is not None
        try:
            with publisher.running():
                for _ in range(KILLS):
                    runs.stdin.write("go\n")
                    runs.stdin.flush()
                    pid = int(runs.stdout.readline())
                    seen = [runs.stdout.readline().strip() for _ in range(rng.randrange(STEPS_MAX))]
                    time.sleep(rng.uniform(0, 0.1))
                    os.kill(pid, signal.SIGKILL)
                    while (last := runs.stdout.readline().strip()) != ENDED:
                        assert last, "the parent of the runs has ended"
                        assert not last.startswith("ended"), f"a run ended by itself: {last}"
                        seen.append(last)
                    steps.update(seen)
        finally:
            runs.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(runs.pid, signal.SIGKILL)
            runs.wait(60)
            runs.stdout.close()
        deadline = time.monotonic() + 60
        while known_end(service, TOPIC) < publisher.count:
            assert time.monotonic() < deadline, "readers see all messages"
            time.sleep(0.1)
        for step in ("committed append", "committed join", "committed expire"):
            assert steps[step] > KILLS / 20, f"kills struck runs that came far: {steps}"
        options = TableOptions(f"public/{TOPIC}", place)
        table(service, options, lambda _: None)
        rows = catalog_of(place).load_table(("public", TOPIC)).scan().to_arrow()
        found = sorted(
            zip(*(rows[name].to_pylist() for name in ("partition", "offset")), strict=True)
        )
        expected = [
            (number, offset)
            for number in range(3)
            for offset in range(sum(one[0] == number for one in found))
        ]
        assert found == expected, "each offset once, without a gap"
        values = sorted(int(bytes(value)[1:]) for value in rows["value"].to_pylist())
        assert values == list(range(publisher.count))
