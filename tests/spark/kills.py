"""Kills of a streaming query: `python -m tests.spark.kills --cycles 100 [--seed S] [--json]`. A
query that copies a topic is killed by SIGKILL at a random moment, or when a commit is decided,
and started again on the same checkpoint. At the end each row came out once."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from octavo import Client
from octavo.protocol.batch import split_batches
from octavo.protocol.records import read_records
from octavo.spark.sink_options import COMMITS
from tests.spark.killed_query import COPY, ORIGIN, ROWS_PER_BATCH
from tests.support.processes.standalone import environment, standalone

BATCHES = "application/vnd.kafka.recordbatch.v2"
ENDED_IN_A_ROW_MAX = 8
LIFE_S_MAX = 1200.0
COPY_PARTITIONS = 2


@dataclass
class Report:
    """Every kill is counted in exactly one of the three moments."""

    seed: int
    cycles: int
    commit: str = "bulk-load"
    seconds: float = 0.0
    batches: int = 0
    workers_killed: int = 0
    ended: int = 0
    killed_before_sparks_commit: int = 0
    """The sink had committed the batch, Spark had not."""
    killed_amid_a_batch: int = 0
    """Spark had planned a batch that the sink had not committed."""
    killed_between_batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_distinct: int = 0
    missing: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.missing and not self.doubled and self.rows_in == self.rows_out


class Life:
    def __init__(self, service: str, folder: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self._said = folder / "said"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.spark.killed_query", service, str(folder),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )  # fmt: skip

    def members(self, name: str = "") -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if session == self.process.pid and command and name in command:
                        found.append(int(folder.name))
        return found

    def kill_worker(self, rng: random.Random) -> bool:
        workers = self.members("pyspark.daemon")
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
        return bool(workers)

    def kill(self) -> None:
        while members := self.members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
        self.process.wait(10)

    def said(self) -> str:
        return self._said.read_text(errors="replace")[-4000:]


class Campaign:
    def __init__(self, service: str, folder: Path, report: Report) -> None:
        self._service = service
        self._folder = folder
        self._report = report
        self._rng = random.Random(report.seed)
        self._published = 0
        self._stop = threading.Event()
        self._failed: list[BaseException] = []

    def run(self, say: Callable[[str], None]) -> None:
        with Client(self._service) as client:
            client.create_topic(ORIGIN, partitions=3)
            client.create_topic(COPY, partitions=COPY_PARTITIONS)
        feeder = threading.Thread(target=self._feed, name="feed")
        feeder.start()
        try:
            for cycle in range(self._report.cycles):
                self._cycle()
                say(f"cycle {cycle + 1} of {self._report.cycles}: batch {self._decided()}")
        finally:
            self._stop.set()
            feeder.join()
        if self._failed:
            raise self._failed[0]
        self._wait_for_readers()
        for _ in range(ENDED_IN_A_ROW_MAX):
            last = Life(self._service, self._folder, self._report.commit, "--drain")
            try:
                if last.process.wait(LIFE_S_MAX) == 0:
                    break
                self._report.ended += 1
            finally:
                last.kill()
        else:
            raise AssertionError(f"the query ends again and again: {last.said()}")
        self._compare()

    def _feed(self) -> None:
        try:
            with Client(self._service) as client, client.producer(ORIGIN) as producer:
                while not self._stop.is_set():
                    # Not more than the query handles: rows cost time at the end.
                    if self._published < (self._decided() + 8) * ROWS_PER_BATCH:
                        for _ in range(40):
                            number = self._published
                            producer.send(b"%d" % number, key=f"k{number % 11}")
                            self._published += 1
                        producer.flush()
                    self._stop.wait(0.1)
        except BaseException as error:
            self._failed.append(error)

    def _wait_for_readers(self) -> None:
        """Wait until bookies know the last confirmed entry, a moment after the publisher."""
        from tests.support.published import known_end

        deadline_s = time.monotonic() + LIFE_S_MAX
        while known_end(self._service, ORIGIN) < self._published:
            assert time.monotonic() < deadline_s, "readers do not see what was published"
            time.sleep(0.05)

    def _cycle(self) -> None:
        for _ in range(ENDED_IN_A_ROW_MAX):
            life = Life(self._service, self._folder, self._report.commit)
            try:
                if self._commits_once_more(life):
                    break
                self._report.ended += 1
            finally:
                life.kill()
        else:
            raise AssertionError(f"the query ends again and again: {life.said()}")
        self._note()

    def _commits_once_more(self, life: Life) -> bool:
        """Let it work until the moment of its death; return False when it ends before."""
        rng = self._rng
        if not self._wait_for_commit(life):
            return False
        if rng.random() < 0.3 and life.kill_worker(rng):
            self._report.workers_killed += 1
        for _ in range(rng.randrange(3)):
            if not self._wait_for_commit(life):
                return False
        if rng.random() < 0.5:
            time.sleep(rng.random() * 2.0)
        return True

    def _wait_for_commit(self, life: Life) -> bool:
        """Wait until the sink has committed another batch, perhaps before Spark has."""
        before, deadline_s = self._decided(), time.monotonic() + LIFE_S_MAX
        while self._decided() == before:
            if life.process.poll() is not None:
                return False
            if self._failed:
                raise self._failed[0]
            assert time.monotonic() < deadline_s, f"no batch within {LIFE_S_MAX:g} s"
            time.sleep(0.01)
        return True

    def _decided(self) -> int:
        try:
            query = json.loads((self._folder / "checkpoint" / "metadata").read_text())["id"]
            with urlopen(f"{self._service}/v1/bulk-loads/{query}", timeout=60) as answer:
                found: int = json.load(answer)["batch"]
                return found
        except (FileNotFoundError, ValueError, HTTPError):
            return -1

    def _note(self) -> None:
        decided, report = self._decided(), self._report
        report.batches = decided + 1
        if self._newest("commits") < decided:
            report.killed_before_sparks_commit += 1
        elif self._newest("offsets") > decided:
            report.killed_amid_a_batch += 1
        else:
            report.killed_between_batches += 1

    def _newest(self, kind: str) -> int:
        folder = self._folder / "checkpoint" / kind
        names = (one.name for one in folder.iterdir()) if folder.is_dir() else ()
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _compare(self) -> None:
        report = self._report
        report.batches = self._decided() + 1
        found = Counter(self._rows_out())
        report.rows_in, report.rows_out = self._published, found.total()
        report.rows_distinct = len(found)
        expected = {str(number) for number in range(self._published)}
        report.missing = sorted(expected - found.keys())[:20]
        report.doubled = sorted(one for one, count in found.items() if count > 1)[:20]

    def _rows_out(self) -> Iterator[str]:
        for number in range(COPY_PARTITIONS):
            offset = 0
            path = f"{self._service}/v1/topics/public/{COPY}/partitions/{number}/messages"
            while True:
                request = Request(f"{path}?from={offset}", headers={"Accept": BATCHES})
                with urlopen(request, timeout=60) as answer:
                    if answer.status == 204:
                        break
                    body = answer.read()
                for header, data in split_batches(body):
                    for record in list(read_records(data))[max(0, offset - header.base_offset) :]:
                        yield (record.value or b"").decode()
                        offset += 1


def run_campaign(
    folder: Path, cycles: int, seed: int, say: Callable[[str], None], commit: str = "bulk-load"
) -> Report:
    report = Report(seed, cycles, commit)
    started_s = time.monotonic()
    with standalone(folder / "data") as cluster:
        Campaign(cluster.cluster.urls[0], folder / "query", report).run(say)
    report.seconds = round(time.monotonic() - started_s, 1)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="tests.spark.kills")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--commit", choices=COMMITS, default="bulk-load", help="the sink's option")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="octavo-spark-kills-") as folder:
        report = run_campaign(
            Path(folder), arguments.cycles, arguments.seed,
            lambda text: print(text, file=sys.stderr, flush=True), arguments.commit,
        )  # fmt: skip
    if arguments.json:
        print(json.dumps(asdict(report)))
    else:
        print(
            f"{report.cycles} kills in {report.seconds:g} s "
            f"(seed {report.seed}, commit {report.commit}), "
            f"{report.batches} micro-batches: {report.killed_before_sparks_commit} between the "
            f"sink's commit and Spark's, {report.killed_amid_a_batch} amid a batch, "
            f"{report.killed_between_batches} between batches; "
            f"{report.workers_killed} Python workers killed besides; "
            f"{report.ended} starts that failed by themselves\n"
            f"rows in {report.rows_in}, rows out {report.rows_out}, "
            f"distinct rows {report.rows_distinct}"
        )
        for kind in ("missing", "doubled"):
            if rows := getattr(report, kind):
                print(f"{kind}: {', '.join(rows)}", file=sys.stderr)
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
