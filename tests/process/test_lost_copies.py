"""Every disk of a cluster is lost, one after another, and no acked message is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from octavo import Client
from tests.support.processes.standalone import Standalone, standalone, until

pytestmark = pytest.mark.long

TOPIC = "copies"
QUICK = (
    "--session-timeout-ms=2000",
    "--set=bookie.copies_retry_ms=500",
    "--set=bookie.copies_open_ledger_ms=500",
    "--set=bookie.accept_data_loss=true",
)
HEALED_S = 90.0


def publish(running: Standalone, first: int, count: int) -> None:
    with Client(running.cluster.urls) as client, client.producer(TOPIC) as producer:
        for number in range(first, first + count):
            producer.send(str(number), key="k")
            if number % 10 == 9:
                producer.flush()


def read(running: Standalone) -> list[int]:
    with Client(running.cluster.urls) as client:
        return [int(message.text()) for message in client.messages(TOPIC, partition=0)]


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
            client.create_topic(TOPIC, partitions=1, rollover={"entries": 5})
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
