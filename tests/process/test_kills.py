"""Processes are killed, stopped and restarted, disks and metadata are lost: no acked message is."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import AsyncClient, Client
from octavo.standalone.ports import free_port
from tests.process.campaign import run_campaign, shown
from tests.support.kit.history import Call
from tests.support.processes.audit import problems, stored, texts
from tests.support.processes.chaos import (
    SESSION_MS,
    SETTLE_S,
    SMALL_BOOKIE,
    SMALL_BROKER,
    Breaker,
    random_faults,
    run_round,
)
from tests.support.processes.kills import LaunchedSupervisor
from tests.support.processes.standalone import (
    OCTAVO,
    Standalone,
    environment,
    octavo,
    standalone,
    until,
)
from tests.support.processes.users import SUBSCRIPTION, Consumer, Publisher, Record, note_read
from tests.support.processes.users import TOPIC as CHAOS_TOPIC
from tests.support.processes.waiting import everybody_registered, more_acked
from tests.support.zookeeper_server import ZooKeeperServer, running_zookeeper

pytestmark = pytest.mark.long

TOPIC = "kills"
PARTITIONS = 2
KILLS = int(os.environ.get("KILLS", "4"))


def small() -> Iterator[str]:
    for section, settings in (("bookie", SMALL_BOOKIE), ("broker", SMALL_BROKER)):
        for name, value in settings.items():
            yield f"--set={section}.{name}={value}"


def read_all(urls: list[str]) -> dict[tuple[int, int], str]:
    with Client(urls) as client:
        return {
            (partition, message.offset): message.text()
            for partition in range(PARTITIONS)
            for message in client.messages(TOPIC, partition=partition)
        }


@pytest.mark.timeout(600)
async def test_nothing_acked_is_lost(tmp_path: Path) -> None:
    """Publishers repeat unanswered messages under the same sequences: in the end every message
    is there exactly once, in order per key, at its acked offset, and was delivered."""
    rng = random.Random(20131224)
    one = Standalone(tmp_path / "data", "--session-timeout-ms", "2000", *small())
    record = Record()
    interrupted = 0
    try:
        await asyncio.to_thread(one.start)
        async with AsyncClient(one.cluster.urls, attempt_s=5, retry_s=SETTLE_S) as client:
            await client.create_topic(CHAOS_TOPIC, partitions=PARTITIONS, rollover={"entries": 100})
            await client.subscribe(CHAOS_TOPIC, SUBSCRIPTION, type="shared", ack_timeout_s=3)
            publishers = [Publisher(client, record, f"p{n}") for n in range(2)]
            consumer = Consumer(
                client.subscription(CHAOS_TOPIC, SUBSCRIPTION), record, rng, PARTITIONS
            )
            async with asyncio.TaskGroup() as group:
                publishing = [group.create_task(each.run(rate=400)) for each in publishers]
                consuming = group.create_task(consumer.run())
                for _ in range(KILLS):
                    goal = record.acked + rng.randrange(1, 1_000)
                    async with asyncio.timeout(SETTLE_S):
                        while record.acked < goal:  # noqa: ASYNC110
                            await asyncio.sleep(0.005)
                    await asyncio.to_thread(one.kill_everything)
                    interrupted += record.sent - record.acked
                    await asyncio.to_thread(one.start)
                for each in publishers:
                    each.stopping = True
                async with asyncio.timeout(SETTLE_S):
                    await asyncio.gather(*publishing)
                    found = await stored(one.cluster.urls, PARTITIONS)
                    while record.consumed != set(found):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                consuming.cancel()
        assert interrupted, "the kills came while it published"
        record.history.add_done("auditor", Call.DRAIN, group=SUBSCRIPTION)
        note_read(record, "auditor", texts(found))
        wrong = problems(record, found)
        assert not wrong, "\n".join(wrong[:20])
        assert record.acked == record.sent
        assert "Traceback" not in await asyncio.to_thread(one.stop)
    finally:
        one.clean_up()


def test_a_bookie_dies_for_good(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", "--no-restart") as one:
        with Client(one.cluster.urls) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
            expected = [f"m{n}" for n in range(600)]
            client.publish_many(TOPIC, [("k", text) for text in expected[:300]])
            one.kill("bookie-3")
            client.publish_many(TOPIC, [("k", text) for text in expected[300:]])
        found = sorted(read_all(one.cluster.urls).items())
        assert [text for _, text in found] == expected
        member = one.cluster.member("bookie-3")
        assert member is not None
        until(lambda: one.cluster.member("bookie-3").state == "dead", "it counts as dead")  # type: ignore[union-attr]
        assert member.restarts == 0


def test_the_supervisor_alone_is_killed(tmp_path: Path) -> None:
    """Its children notice and stop; a new supervisor on the same folder waits for them."""
    one = Standalone(tmp_path / "data")
    try:
        one.start()
        with Client(one.cluster.urls) as client:
            client.create_topic(TOPIC)
            client.publish(TOPIC, "before")
        assert one.process is not None
        one.process.kill()
        one.process.wait(10)
        one.start()
        with Client(one.cluster.urls) as client:
            client.publish(TOPIC, "after")
            assert [message.text() for message in client.messages(TOPIC)] == ["before", "after"]
        one.stop()
    finally:
        one.clean_up()


CYCLES = int(os.environ.get("KILL_CYCLES", "24"))
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().getrandbits(32))


@pytest.mark.timeout(120 + 10 * CYCLES)
async def test_nothing_is_lost_in_a_campaign(tmp_path: Path) -> None:
    replay = f"KILL_SEED={SEED} KILL_CYCLES={CYCLES} pytest {__file__} -s"
    print(f"replay: {replay}")
    try:
        report = await run_campaign(tmp_path / "data", seed=SEED, cycles=CYCLES)
    except BaseException as error:
        error.add_note(f"replay: {replay}")
        raise
    print(shown(report))
    assert not report.wrong, f"replay: {replay}\n" + "\n".join(report.wrong[:20])
    assert not report.unknown_steps, "failpoints.py lacks persist steps that the product takes"
    assert report.cycles >= CYCLES
    assert report.acked == report.sent == report.stored == report.delivered > 1_000
    if CYCLES >= 500:
        assert not report.never_hit, f"in {CYCLES} kills nobody died at {report.never_hit}"


ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
FAULTS = int(os.environ.get("CHAOS_FAULTS", "8"))
SEED_RANDOM = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().getrandbits(32))
ROUND_IDS = [f"round-{number}" for number in range(ROUNDS)]
"""Without the seed: the workers of pytest-xdist must find tests of the same names."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED_RANDOM, SEED_RANDOM + ROUNDS), ids=ROUND_IDS)
async def test_promises_hold_under_random_faults(tmp_path: Path, seed: int) -> None:
    await check_round(tmp_path, seed)


@pytest.mark.zookeeper
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED_RANDOM, SEED_RANDOM + ROUNDS), ids=ROUND_IDS)
async def test_they_hold_over_zookeeper_too(
    tmp_path: Path, seed: int, zookeeper: ZooKeeperServer
) -> None:
    await check_round(tmp_path, seed, zookeeper.new_url())


async def check_round(folder: Path, seed: int, metadata_url: str = "") -> None:
    test = "zookeeper" if metadata_url else "promises"
    replay = f"CHAOS_SEED={seed} CHAOS_FAULTS={FAULTS} pytest {__file__} -k {test} -s"
    print(f"replay: {replay}")
    rng = random.Random(seed)
    try:
        outcome = await run_round(folder / "data", rng, random_faults(rng, FAULTS), metadata_url)
    except BaseException as error:
        error.add_note(f"replay: {replay}")
        raise
    record, wrong = outcome.record, outcome.wrong
    print(
        f"seed {seed}: {record.sent} sent, {record.acked} acked, "
        f"{record.delivered.total()} deliveries of {len(record.delivered)} messages\n  "
        + "\n  ".join(outcome.faults)
    )
    assert not wrong, f"{len(wrong)} problems:\n" + "\n".join(wrong[:20]) + f"\nreplay: {replay}"
    assert record.acked == record.sent > 100, "the users did something"
    shutil.rmtree(folder / "data")


ACK_S_MAX = 10.0
"""The longest wait for an ack, on a machine that runs other tests."""


@pytest.mark.timeout(600)
async def test_a_rolling_restart_is_noticed_by_nobody(tmp_path: Path) -> None:
    said: list[str] = []

    async def trouble(breaker: Breaker, record: Record) -> None:
        supervisor = breaker.supervisor
        assert isinstance(supervisor, LaunchedSupervisor)
        await more_acked(record, 200)
        for name, child in supervisor.launched.items():
            supervisor.signal(name, signal.SIGTERM)
            assert await supervisor.until_dead(name), f"{name} does not end"
            said.append(f"{name}: {child.exit_text}")
            await supervisor.resume(name)
            await more_acked(record, 100)
        await everybody_registered(supervisor.cluster.urls)

    outcome = await run_round(
        tmp_path / "data", random.Random(11), trouble, make_supervisor=LaunchedSupervisor
    )
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert {one.partition(": ")[2] for one in said} == {"exit code 0"}, said
    sends = [one for one in outcome.record.history if one.call is Call.SEND]
    waits = sorted((one.completed_at or 1e9) - one.invoked_at for one in sends)
    print(
        f"{len(said)} restarts, {len(waits)} messages; waited p50 {waits[len(waits) // 2]:.3f} s, "
        f"p99 {waits[len(waits) * 99 // 100]:.3f} s, at most {waits[-1]:.3f} s"
    )
    assert waits[-1] < ACK_S_MAX, f"a message waited {waits[-1]:.1f} s for its ack"
    assert waits[len(waits) // 2] < SESSION_MS / 1000


TOPIC_COPIES = "copies"
QUICK = (
    "--session-timeout-ms=2000",
    "--set=bookie.copies_retry_ms=500",
    "--set=bookie.copies_open_ledger_ms=500",
    "--set=bookie.accept_data_loss=true",
)
HEALED_S = 90.0


def publish(running: Standalone, first: int, count: int) -> None:
    with Client(running.cluster.urls) as client, client.producer(TOPIC_COPIES) as producer:
        for number in range(first, first + count):
            producer.send(str(number), key="k")
            if number % 10 == 9:
                producer.flush()


def read(running: Standalone) -> list[int]:
    with Client(running.cluster.urls) as client:
        return [int(message.text()) for message in client.messages(TOPIC_COPIES, partition=0)]


def said(running: Standalone, name: str, event: str) -> bool:
    member = running.cluster.member(name)
    assert member is not None
    return f'"event": "{event}"' in Path(member.log).read_text()


@pytest.mark.timeout(600)
def test_all_disks_are_replaced_in_turn(tmp_path: Path) -> None:
    """E = Qw = 3 on three bookies: there is no spare, so each fetches its own copies back."""
    folder = tmp_path / "data"
    with standalone(folder, *QUICK) as running:
        with Client(running.cluster.urls) as client:
            client.create_topic(TOPIC_COPIES, partitions=1, rollover={"entries": 5})
        publish(running, 0, 300)
        running.stop()
    for turn in range(1, 4):
        name = f"bookie-{turn}"
        (lost,) = [path for path in folder.rglob(name) if path.is_dir()]
        shutil.rmtree(lost)
        for log in folder.rglob(f"{name}.jsonl"):
            log.unlink()
        with standalone(folder, *QUICK) as running:
            publish(running, 300 * turn, 300)
            until(
                lambda name=name, of=running: said(of, name, "limbo_over"),  # type: ignore[misc]
                f"{name} has fetched everything back",
                HEALED_S,
            )
            assert said(running, name, "copies_fetched")
            assert read(running) == list(range(300 * (turn + 1)))
            running.stop()


QUICK_OLDER = ("--session-timeout-ms=2000",)
ACCEPTED = "--set=bookie.accept_older_metadata=true"


def publish_older(urls: list[str], topic: str, *texts: str) -> None:
    with Client(urls) as client:
        client.create_topic(topic, partitions=1)
        for text in texts:
            client.publish(topic, text)


def read_older(urls: list[str], topic: str) -> list[str]:
    with Client(urls) as client:
        return [message.text() for message in client.messages(topic)]


def refused(folder: Path, *arguments: str) -> str:
    command = [*OCTAVO, "standalone", "--data", str(folder), "--port-base", "0", *arguments]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert found.returncode == 1, found.stdout
    assert "Traceback" not in found.stderr
    return " ".join(found.stderr.split())


def ids(folder: Path, *metadata: str) -> list[int]:
    where = metadata or ("--data", str(folder))
    found = octavo("ledger", "list", *where, "--json")
    assert found.returncode == 0, found.stderr
    return [one["ledger_id"] for one in json.loads(found.stdout)]


@pytest.mark.timeout(900)
def test_a_copied_file_is_refused_and_may_be_accepted(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    with standalone(folder, *QUICK_OLDER) as running:
        publish_older(running.cluster.urls, "before", "a", "b")
        running.stop()
    copy.mkdir()
    names = [path.name for path in folder.glob("metadata.db*")]
    for name in names:
        shutil.copy(folder / name, copy / name)
    with standalone(folder, *QUICK_OLDER) as running:
        publish_older(running.cluster.urls, "after", "c")
        given = ids(folder)
        running.stop()
    newest = tmp_path / "newest"
    newest.mkdir()
    for path in folder.glob("metadata.db*"):
        shutil.move(path, newest / path.name)
    for name in names:
        shutil.copy(copy / name, folder / name)

    said = refused(folder, *QUICK_OLDER)
    assert "is an older copy" in said
    assert "restore the newest metadata" in said
    assert "accept_older_metadata=true" in said or "--accept-older-metadata" in said

    for path in folder.glob("metadata.db*"):
        path.unlink()
    for path in newest.iterdir():
        shutil.copy(path, folder / path.name)
    with standalone(folder, *QUICK_OLDER) as running:
        assert read_older(running.cluster.urls, "after") == ["c"]
        given += ids(folder)
        running.stop()

    for path in folder.glob("metadata.db*"):
        path.unlink()
    for name in names:
        shutil.copy(copy / name, folder / name)
    with standalone(folder, *QUICK_OLDER, ACCEPTED) as running:
        assert read_older(running.cluster.urls, "before") == ["a", "b"]
        publish_older(running.cluster.urls, "later", "d")
        assert read_older(running.cluster.urls, "later") == ["d"]
        new = set(ids(folder)) - set(given)
        assert new, "there are ledgers with ids that none had before"
        assert min(new) > max(given)
        running.stop()
    with standalone(folder, *QUICK_OLDER) as running:
        assert read_older(running.cluster.urls, "later") == ["d"]
        running.stop()


@pytest.mark.zookeeper
@pytest.mark.timeout(900)
def test_zookeepers_folder_put_back_is_refused(tmp_path: Path) -> None:
    data, copy, folder = tmp_path / "zookeeper", tmp_path / "copy", tmp_path / "data"
    data.mkdir()
    port = free_port()
    with running_zookeeper(data, port) as server:
        metadata = f"--metadata=zk://127.0.0.1:{server.port}/octavo"
        with standalone(folder, *QUICK_OLDER, metadata) as running:
            publish_older(running.cluster.urls, "before", "a")
            running.stop()
    shutil.copytree(data, copy)
    with running_zookeeper(data, port) as server:
        metadata = f"--metadata=zk://127.0.0.1:{server.port}/octavo"
        with standalone(folder, *QUICK_OLDER, metadata) as running:
            publish_older(running.cluster.urls, "after", "b")
            running.stop()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    with running_zookeeper(data, port) as server:
        metadata = f"--metadata=zk://127.0.0.1:{server.port}/octavo"
        assert "is an older copy" in refused(folder, *QUICK_OLDER, metadata)
        with standalone(folder, *QUICK_OLDER, metadata, ACCEPTED) as running:
            assert read_older(running.cluster.urls, "before") == ["a"]
            publish_older(running.cluster.urls, "later", "c")
            assert read_older(running.cluster.urls, "later") == ["c"]
            running.stop()
