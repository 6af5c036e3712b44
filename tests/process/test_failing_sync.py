"""Disks that fail under real processes: a preloaded library (failing_sync.c) fails the calls of
RocksDB too. After a failed `fsync` a bookie ends with a message that names it: a retry is wrong,
because the kernel may have dropped the pages. No acked message is lost, and the bookie can start
again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
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

from octavo import Client
from octavo.pipeline.table import TableOptions, table
from octavo.pipeline.table_iceberg import Place, catalog_of
from octavo.process.spec import ProcessSpec
from octavo.standalone.child import Child
from octavo.standalone.supervisor import Plan, Supervisor
from tests.support.processes.chaos import Breaker, Outcome, run_round
from tests.support.processes.failpoints import lines
from tests.support.processes.kills import TINY_BOOKIE
from tests.support.processes.standalone import environment, standalone
from tests.support.processes.users import Record
from tests.support.processes.waiting import DEADLINE_S, more_acked, more_lines
from tests.support.published import known_end

SOURCE = Path(__file__).with_name("failing_sync.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        assert not os.environ.get("REQUIRE_GCC"), "CI installs gcc: there this is never skipped"
        pytest.skip("needs a C compiler (gcc) to build the library that makes fsync fail")
    built = tmp_path_factory.mktemp("shim") / "failing_sync.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-o", str(built), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return built


class ShimmedChild(Child):
    library: Path

    def __init__(self, kind: str, spec: ProcessSpec, folder: Path) -> None:
        super().__init__(kind, spec, folder)
        self.trigger = folder / f"{spec.name}.trigger"

    @property
    def environment(self) -> dict[str, str]:
        own = {"LD_PRELOAD": str(self.library), "FAILING_SYNC": str(self.trigger)}
        return {**super().environment, **own}

    @contextlib.contextmanager
    def failing(self, what: str) -> Iterator[Path]:
        """Make calls fail within the block; yield the file that lists them."""
        hits = self.trigger.with_name(self.trigger.name + ".hits")
        hits.unlink(missing_ok=True)
        draft = self.trigger.with_suffix(".draft")
        draft.write_text(what)
        draft.rename(self.trigger)
        try:
            yield hits
        finally:
            self.trigger.unlink()


class Cluster:
    def __init__(self, breaker: Breaker, record: Record, children: dict[str, ShimmedChild]) -> None:
        self.supervisor = breaker.supervisor
        self.record = record
        self.children = children

    async def until_dead(self, name: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.state(name) != "dead":  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def state(self, name: str) -> str:
        member = self.supervisor.cluster.member(name)
        assert member is not None
        return member.state

    async def more_acked(self, count: int) -> None:
        await more_acked(self.record, count)

    async def until_logged(self, name: str, event: str, since: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while event not in {one["event"] for one in self.events(name)[since:]}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def events(self, name: str) -> list[dict[str, str]]:
        lines = self.children[name].log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


async def round_with_shim(folder: Path, library: Path, trouble: object) -> Outcome:
    children: dict[str, ShimmedChild] = {}

    def make_child(kind: str, spec: ProcessSpec, folder: Path) -> Child:
        if kind == "broker":
            return Child(kind, spec, folder)
        child = children[spec.name] = ShimmedChild(kind, spec, folder)
        child.library = library
        return child

    def make_supervisor(plan: Plan) -> Supervisor:
        return Supervisor(plan, make_child=make_child)

    async def with_cluster(breaker: Breaker, record: Record) -> None:
        await trouble(Cluster(breaker, record, children))  # type: ignore[operator]

    return await run_round(
        folder,
        random.Random(4),
        with_cluster,
        bookie=TINY_BOOKIE,
        make_supervisor=make_supervisor,
        rate=100,
    )


SYNCS = {
    "the journal": "/journal/",
    "an entry log": ".log$",
    "the ledger state": ".state$",
    "the mark": "journal.mark.new$",
    "the journal's folder": "/journal$",
    "the ledgers' folder": "/ledgers$",
    "the index": "/ledgers/index/",
}


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_failed_sync_ends_the_bookie_and_loses_nothing(
    tmp_path: Path, library: Path
) -> None:
    async def trouble(cluster: Cluster) -> None:
        for number, (what, part) in enumerate(SYNCS.items()):
            name = f"bookie-{number % 4 + 1}"
            child = cluster.children[name]
            await cluster.more_acked(100)
            with child.failing(f"sync EIO {part}") as hits:
                await cluster.until_dead(name)
            assert child.exit_text == "exit code 1", f"{what}: {child.exit_text}"
            assert lines(hits), f"{what}: the library did not fail anything"
            last = cluster.events(name)[-1]
            assert last["event"] == "process_failed", f"{what}: {last}"
            reason = last["reason"]
            assert "Input/output error" in reason, f"{what}: {reason}"
            assert f"/{name}/" in reason, f"{what}: the reason names the file: {reason}"
            await cluster.more_acked(200)
            await cluster.supervisor.resume(name)

    outcome = await round_with_shim(tmp_path / "data", library, trouble)
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert outcome.record.acked == outcome.record.sent > 2_000


FULL = {
    "the journal": "/journal/",
    "an entry log": ".log$",
    "the ledger state": ".state$",
    "the index": "/ledgers/index/",
}


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_full_disk_is_survived(tmp_path: Path, library: Path) -> None:
    async def trouble(cluster: Cluster) -> None:
        for number, (what, part) in enumerate(FULL.items()):
            name = f"bookie-{number + 1}"
            await cluster.more_acked(100)
            before = len(cluster.events(name))
            with cluster.children[name].failing(f"write ENOSPC {part}"):
                await cluster.until_logged(name, "disk_full", before)
                await cluster.more_acked(200)
            await cluster.until_logged(name, "disk_space_returned", before)
            assert cluster.state(name) == "running", f"{what} on a full disk ended {name}"

    outcome = await round_with_shim(tmp_path / "data", library, trouble)
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_short_writes_are_completed(tmp_path: Path, library: Path) -> None:
    """The kernel may write less than it was given: POSIX allows it."""

    async def trouble(cluster: Cluster) -> None:
        with contextlib.ExitStack() as stack:
            for child in cluster.children.values():
                hits = stack.enter_context(child.failing("write SHORT /bookie-"))
            await more_lines(hits, 50)
            await cluster.more_acked(300)

    outcome = await round_with_shim(tmp_path / "data", library, trouble)
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])


pytest.importorskip("pyiceberg", reason="needs octavo[tables]")

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
