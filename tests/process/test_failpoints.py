"""A bookie that dies at every step of its first start, and of clearing away a crash's leftovers.
test_kill_campaign.py covers a serving bookie."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.opening import open_store
from octavo.process.spec import ProcessSpec
from octavo.protocol.answers import Added
from octavo.standalone.child import ChildFailed
from octavo.standalone.ports import free_port
from tests.support.processes.failpoints import (
    FIRST_START_FAILPOINTS,
    Armed,
    Failpoint,
    Trigger,
    hits,
)
from tests.support.processes.kills import TINY_BOOKIE, LaunchedChild
from tests.support.processes.seams import record_kind
from tests.support.raw_bookie import RawClient, adds_of, entry_of

PAYLOAD = b"p" * 300


class Bookie:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}/metadata.db"
        self.port = free_port()
        section: dict[str, Any] = {
            **TINY_BOOKIE,
            "port": self.port,
            "bookie_id": "bookie-1",
            "journal_directories": [f"{folder}/data/journal"],
            "ledger_directories": [f"{folder}/data/ledgers"],
        }
        spec = ProcessSpec(name="bookie-1", metadata_url=self.url, sections={"bookie": section})
        self.child = LaunchedChild("bookie", spec, folder)

    async def dies_starting(self, failpoint: Failpoint) -> None:
        self.child.trigger.arm(failpoint)
        with pytest.raises(ChildFailed, match="killed by SIGKILL before it was ready"):
            await self.child.start()
        assert not self.child.trigger.is_armed, f"{failpoint} was not what killed it"

    async def kill(self) -> None:
        self.child.signal(signal.SIGKILL)
        await self.child.wait()

    async def adds_until_dead(self, first: int) -> int:
        client = await RawClient.connect_to(self.port)
        acked = sent = first - 1
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                if sent - acked < 400:
                    client.send(adds_of(1, range(sent + 1, sent + 101), PAYLOAD))
                    sent += 100
                answer = await client.answer()
                assert isinstance(answer, Added)
                acked = answer.last
        client.close()
        await self.child.wait()
        return acked

    async def holds(self, last: int) -> bool:
        client = await RawClient.connect_to(self.port)
        expected = [entry_of(1, number, PAYLOAD) for number in range(last + 1)]
        found = await client.read_all(1, last)
        client.close()
        return found == expected


@pytest.mark.long
async def test_every_step_of_a_first_start(tmp_path: Path) -> None:
    for number, name in enumerate(FIRST_START_FAILPOINTS):
        step, _, phase = name.partition(":")
        bookie = Bookie(tmp_path / str(number))
        await bookie.dies_starting(Failpoint(step, phase))
        if name in ("cookie.create:after", "cookie.rename:before"):
            await bookie.dies_starting(Failpoint("cookie.unlink", "before"))
            await bookie.dies_starting(Failpoint("cookie.unlink", "after"))
        await bookie.child.start()
        client = await RawClient.connect_to(bookie.port)
        client.send(adds_of(1, range(10), PAYLOAD))
        assert len(await client.acked(10)) == 10
        client.close()
        assert await bookie.holds(9), name
        await bookie.kill()
        assert name in hits(bookie.folder / "failpoints")


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("mark.create:after", "mark.unlink"),
        ("mark.rename:before", "mark.unlink"),
        ("log.create:after", "log.unlink"),
    ],
)
async def test_a_death_while_it_clears_away_what_another_left(
    tmp_path: Path, first: str, second: str
) -> None:
    """It dies while it writes a file, and again when it removes the rest."""
    bookie = Bookie(tmp_path)
    store = open_store(bookie.url)
    await store.start()
    await LedgerStore(store).initialize()
    await store.close()
    acked = -1
    for phase in ("before", "after"):
        step, _, moment = first.partition(":")
        bookie.child.trigger.arm(Failpoint(step, moment, 2))
        await bookie.child.start()
        acked = await bookie.adds_until_dead(acked + 1)
        bookie.child.trigger.arm(Failpoint(second, phase))
        with contextlib.suppress(ChildFailed):
            await bookie.child.start()
            await asyncio.wait_for(bookie.adds_until_dead(acked + 1), 30)
        assert not bookie.child.trigger.is_armed, f"{second} was not reached after {first}"
        await bookie.child.start()
        assert await bookie.holds(acked)
        await bookie.kill()


def test_a_failpoint_fires_at_its_time_and_once(tmp_path: Path) -> None:
    armed, trigger = Armed(tmp_path / "b", tmp_path), Trigger(tmp_path / "b")
    assert not armed.reaches("mark.rename", "before")
    trigger.arm(Failpoint("mark.rename", "after", 2))
    assert not armed.reaches("mark.rename", "before")
    assert not armed.reaches("mark.rename", "after")
    assert armed.reaches("mark.rename", "after")
    trigger.disarm()
    assert not armed.reaches("mark.rename", "after")
    trigger.arm(Failpoint("mark.rename", "after", 1))
    assert armed.reaches("mark.rename", "after"), "armed anew it counts anew"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/ledgers/00/0000/L0007", "ledger"),
        ("/ledgers/idgen/ID-", "ledger-id"),
        ("/ledgers/available/bookie-1", "registration"),
        ("/ledgers/available/readonly/bookie-1", "registration"),
        ("/ledgers/cookies/bookie-1", "cookie-record"),
        ("/octavo/owners/public/t/0", "owner"),
        ("/octavo/topics/public/partitions", "topic"),
        ("/octavo/topics/public/t/partitions/0", "partition"),
        ("/octavo/topics/public/t/subscriptions/s", "subscription"),
    ],
)
def test_records_are_told_apart(path: str, kind: str) -> None:
    assert record_kind(path) == kind
