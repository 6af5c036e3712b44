"""A wiped bookie comes back under its id with an accepted loss: it denies no entry that it may
have held, cuts no ledger short, and acks nothing past a close (BookKeeper BP-46, #4812)."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.bookie.disk.files import RealDisk
from octavo.bookie.ledgers.cookies import CookieRefused
from octavo.bookie.node import BookieNode
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import RecoveryFailed
from octavo.ledger.recover.events import EntryAnswered, FenceAnswered, RecoveryEvent
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bookies import BookieIdTaken, BookieInfo, BookieRegistry
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerStore
from octavo.metadata.opening import open_store
from octavo.metadata.store import MetadataStore
from octavo.protocol.codes import Code, OctavoError
from octavo.protocol.extension import Op
from octavo.protocol.frames import Flag
from tests.support.cluster import Cluster, add_many, payload_of
from tests.support.raw_bookie import RawClient, add_of, config_in, until
from tests.support.storage_support import is_fenced

FENCE = int(Flag.FENCE | Flag.HIGH_PRIORITY | Flag.UNKNOWN_STATE)


def new_life(
    folder: Path, store: MetadataStore, name: str, seed: int = 9, **how: Any
) -> BookieNode:
    config = config_in(folder / name, bookie_id=name, **{"accept_data_loss": True, **how})
    return BookieNode(
        config, store, disk=RealDisk(), rng=random.Random(seed), clock=lambda: 1_700_000_000_000
    )


async def wipe(cluster: Cluster, name: str, **how: Any) -> BookieNode:
    await cluster.stop_bookie(name)
    shutil.rmtree(cluster.folder / name)
    node = new_life(cluster.folder, cluster.store, name, **how)
    await node.start()
    cluster.nodes[name] = node
    return node


async def opened(client: LedgerClient, count: int, **how: Any) -> LedgerWriter:
    writer = await client.create(**how)
    await add_many(writer, count)
    return writer


async def everything_is_there(client: LedgerClient, ledger_id: int, last: int) -> None:
    reader = await client.open(ledger_id)
    assert reader.last_add_confirmed >= last
    entries = await reader.read(0, last)
    assert [bytes(entry.payload) for entry in entries] == [payload_of(n) for n in range(last + 1)]


@pytest.mark.parametrize("name", ["b1", "b2", "b3"])
async def test_an_open_ledger_is_recovered_whole(cluster: Cluster, name: str) -> None:
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await opened(client, 50)
    node = await wipe(cluster, name)
    events: list[RecoveryEvent] = []
    closed = await other.recover(writer.ledger_id, observe=events.append)
    assert closed.last_entry == 49
    await everything_is_there(other, writer.ledger_id, 49)
    said = [e for e in events if isinstance(e, FenceAnswered) and e.bookie_id == name]
    assert all(event.last_add_confirmed is None for event in said)
    denied = [e for e in events if isinstance(e, EntryAnswered) and e.bookie_id == name]
    assert not any(event.answer == "absent" for event in denied), "P42"
    with pytest.raises(OctavoError):
        await add_many_or_fail(writer)
    assert is_fenced(node.storage, writer.ledger_id)


async def add_many_or_fail(writer: LedgerWriter) -> None:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(_: int, error: Exception | None) -> None:
        if not failed.done():
            failed.set_result(None) if error is None else failed.set_exception(error)

    writer.add(b"late", done)
    async with asyncio.timeout(20):
        await failed


async def test_the_only_denials_of_a_wiped_bookie_end_no_ledger(cluster: Cluster) -> None:
    """One of two copies is on the wiped bookie, the other bookie is away: unknown, not empty."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await opened(client, 20, ensemble_size=2, write_quorum=2, ack_quorum=2)
    kept, lost = writer.metadata.fragments[0].bookies
    await client.close()
    await wipe(cluster, lost)
    await cluster.stop_bookie(kept)
    with pytest.raises(RecoveryFailed, match="cannot fence"):
        await other.recover(writer.ledger_id)
    await cluster.start_bookie(kept)
    closed = await other.recover(writer.ledger_id)
    assert closed.last_entry == 19
    await everything_is_there(other, writer.ledger_id, 19)


async def test_a_wiped_bookie_takes_what_recovery_writes_back(cluster: Cluster) -> None:
    """Two bookies, both needed for an ack, no spare: the wiped one must take the copy."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await opened(client, 5, ensemble_size=2, write_quorum=2, ack_quorum=2)
    kept, lost = writer.metadata.fragments[0].bookies
    [spare] = {"b1", "b2", "b3"} - {kept, lost}
    await client.close()
    await cluster.stop_bookie(spare)
    node = await wipe(cluster, lost)
    closed = await other.recover(writer.ledger_id)
    assert closed.last_entry == 4
    raw = await RawClient.connect(node)
    found = await raw.read(writer.ledger_id, 4)
    assert isinstance(found, bytes), "written back by recovery"
    raw.close()


async def test_a_live_writer_goes_on_without_the_wiped_bookie(cluster: Cluster) -> None:
    client = await cluster.client(1)
    writer = await opened(client, 10)
    await cluster.start_bookie("b4")
    await wipe(cluster, "b2")
    await add_many(writer, 200)
    await until(lambda: "b2" not in writer.metadata.fragments[-1].bookies)
    await writer.close()
    await everything_is_there(client, writer.ledger_id, 209)
    assert (await client.metadata(writer.ledger_id)).last_entry == 209


def told_by(client: LedgerClient, name: str) -> dict[str, str]:
    info = client.bookies.available.get(name)
    return dict(info.properties) if info is not None else {}


async def test_new_ledgers_use_the_wiped_bookie(cluster: Cluster) -> None:
    client = await cluster.client(1)
    old = await opened(client, 3)
    await wipe(cluster, "b1")
    await until(lambda: "unsure_through" in told_by(client, "b1"))
    new = await opened(client, 10)
    assert new.ledger_id > old.ledger_id
    assert "b1" in new.metadata.fragments[-1].bookies
    await new.close()
    assert len(new.metadata.fragments) == 1
    await everything_is_there(client, new.ledger_id, 9)


async def test_the_answers_of_a_wiped_bookie(cluster: Cluster) -> None:
    client = await cluster.client(1)
    writer = await opened(client, 3)
    ledger_id = writer.ledger_id
    node = await wipe(cluster, "b1")
    raw = await RawClient.connect(node)
    for op, body in (
        (Op.READ_LAC, {}),
        (Op.WAIT_LAC, {"after": -1, "timeout_ms": 60_000}),
        (Op.LIST_ENTRIES, {}),
    ):
        answer = await raw.call(op, ledger=ledger_id, **body)
        assert answer.code is Code.UNKNOWN_STATE, op
        assert "lost data" in answer.body["reason"]
    assert await raw.read(ledger_id, 0) is Code.IO, "a v2 client knows no 107"
    assert await raw.read(ledger_id, 0, int(Flag.UNKNOWN_STATE)) is Code.UNKNOWN_STATE
    assert await raw.add(add_of(ledger_id, 3)) is Code.UNKNOWN_STATE
    assert await raw.add(add_of(ledger_id, 3, flags=0)) is Code.IO
    assert await raw.read(ledger_id, -1, FENCE, b"k" * 20) is Code.UNKNOWN_STATE
    assert is_fenced(node.storage, ledger_id)
    info = (await raw.call(Op.NODE_INFO)).body
    assert info["unsure_through"] >= ledger_id
    assert await raw.add(add_of(info["unsure_through"] + 1, 0)) is Code.OK
    raw.close()
    assert b"octavo_bookie_limbo 1.0" in node.metrics.exposition()


async def test_limbo_lasts_until_the_operator_ends_it(cluster: Cluster) -> None:
    client = await cluster.client(1)
    await opened(client, 3)
    node = await wipe(cluster, "b1")
    through = node.storage.limbo.unsure_through
    for how, still in (
        ({"accept_data_loss": False}, True),
        ({"limbo_ended_through": through - 1}, True),
        ({"limbo_ended_through": through}, False),
        ({"accept_data_loss": True}, False),
    ):
        await cluster.stop_bookie("b1")
        node = new_life(cluster.folder, cluster.store, "b1", **how)
        with capture_logs() as logs:
            await node.start()
        said = [one["unsure_through"] for one in logs if one["event"] == "limbo_not_ended"]
        assert said == [through] * (how.get("limbo_ended_through") == through - 1)
        cluster.nodes["b1"] = node
        assert (node.storage.limbo.record is not None) == still, how


async def test_without_the_operators_word_it_does_not_start(cluster: Cluster) -> None:
    await cluster.stop_bookie("b1")
    shutil.rmtree(cluster.folder / "b1")
    before, _ = await BookieRegistry(cluster.store).read_cookie("b1")
    node = new_life(cluster.folder, cluster.store, "b1", accept_data_loss=False)
    with pytest.raises(CookieRefused, match="--accept-loss"):
        await node.start()
    assert (await BookieRegistry(cluster.store).read_cookie("b1"))[0] == before


async def test_a_new_life_has_a_new_incarnation_and_the_old_disk_is_refused(
    cluster: Cluster,
) -> None:
    before = cluster.nodes["b1"].incarnation
    await cluster.stop_bookie("b1")
    shutil.move(cluster.folder / "b1", cluster.folder / "b1.old")
    node = new_life(cluster.folder, cluster.store, "b1")
    await node.start()
    assert node.incarnation != before
    await node.stop()
    shutil.rmtree(cluster.folder / "b1")
    shutil.move(cluster.folder / "b1.old", cluster.folder / "b1")
    node = new_life(cluster.folder, cluster.store, "b1")
    with pytest.raises(CookieRefused, match="another life"):
        await node.start()


async def test_a_life_that_is_still_registered_is_not_replaced(
    cluster: Cluster, tmp_path: Path
) -> None:
    before = cluster.nodes["b1"].incarnation
    other = open_store(f"file://{tmp_path}/metadata.db", session_timeout_ms=600)
    await other.start()
    node = new_life(tmp_path / "elsewhere", other, "b1")
    recorded, _ = await BookieRegistry(other).read_cookie("b1")
    await BookieRegistry(other).write_cookie(
        type(recorded)(
            "b1",
            ",".join(node.config.journal_directories),
            node.config.ledger_directories,
            recorded.instance_id,
            incarnation=recorded.incarnation,
        ),
        0,
    )
    with pytest.raises(BookieIdTaken):
        await node.start()
    found, _ = await BookieRegistry(other).read_cookie("b1")
    assert found.incarnation == before
    await other.close()


async def test_the_bound_passes_ids_of_their_makers_choice(cluster: Cluster) -> None:
    records = LedgerStore(cluster.store, rng=random.Random(1))
    chosen = LedgerMetadata(5_000_000_000, 1, 1, 1, (Fragment(0, ("b1",)),), password=b"")
    await records.create(chosen)
    node = await wipe(cluster, "b1")
    assert node.storage.limbo.unsure_through >= 5_000_000_000
    assert await records.highest_id() >= 5_000_000_000


async def test_an_id_drawn_before_the_loss_and_used_after_it_is_covered(cluster: Cluster) -> None:
    """Its maker is slow: the record comes only when the new life has drawn its bound."""
    records = LedgerStore(cluster.store, rng=random.Random(1))
    drawn = await records._ids.allocate()
    node = await wipe(cluster, "b1")
    assert node.storage.limbo.covers(drawn)


async def test_registration_tells_the_bound(cluster: Cluster) -> None:
    await wipe(cluster, "b1")
    info: BookieInfo = (await BookieRegistry(cluster.store).available())["b1"]
    assert int(info.properties["unsure_through"]) >= 0
