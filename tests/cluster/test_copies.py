"""Lost copies come back: of a wiped bookie, a bookie that was down, and a bookie that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.bookie.disk.files import RealDisk
from octavo.bookie.ledgers.cookies import CookieRefused
from octavo.bookie.node import BookieNode
from octavo.broker.types import SubscriptionSettings
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import RecoveryFailed
from octavo.ledger.quorum import quorum_of
from octavo.ledger.recover.events import EntryAnswered, FenceAnswered, RecoveryEvent
from octavo.ledger.rereplication.copies import missing, stretches
from octavo.ledger.rereplication.keeper import CopyKeeper, KeeperOptions
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bookies import BookieIdTaken, BookieInfo, BookieRegistry
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.opening import open_store
from octavo.metadata.store import MetadataStore
from octavo.process.copies import NodeCopies, is_owned_by_a_broker, kept_copies
from octavo.protocol.codes import BadRequest, BookieIOError, Code, OctavoError
from octavo.protocol.extension import Op
from octavo.protocol.frames import Flag
from tests.support.cluster import Cluster, add_many, batch, make_topic, owned, payload_of, values
from tests.support.raw_bookie import KEY, RawClient, add_of, config_in, until
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


async def keeper_of(cluster: Cluster, name: str, **how: Any) -> CopyKeeper:
    options = {"lost_bookie_s": 0.0, "open_ledger_s": 0.0, **how}
    client = await cluster.client(hash_of(name))
    is_owned = partial(is_owned_by_a_broker, cluster.store)
    return CopyKeeper(client, NodeCopies(cluster.nodes[name]), KeeperOptions(**options), is_owned)


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "big")


async def written(
    client: LedgerClient, count: int, *, close: bool = True, **how: Any
) -> LedgerWriter:
    writer = await client.create(**how)
    await add_many(writer, count)
    if close:
        await writer.close()
    return writer


async def short_copies(cluster: Cluster, metadata: LedgerMetadata) -> list[tuple[str, Any]]:
    """Return the copies that bookies lack according to the record, from their own disks."""
    found = []
    for stretch in stretches(metadata):
        for position, bookie in enumerate(stretch.fragment.bookies):
            held = await cluster.nodes[bookie].storage.reads.held(metadata.ledger_id)
            gone = missing(quorum_of(metadata), position, stretch.first, stretch.last, held)
            found += [(bookie, run) for run in gone]
    return found


async def all_is_there(client: LedgerClient, ledger_id: int, last: int) -> None:
    reader = await client.open(ledger_id)
    entries = await reader.read(0, last)
    assert [bytes(entry.payload) for entry in entries] == [payload_of(n) for n in range(last + 1)]


async def test_a_wiped_bookie_fetches_everything_back_and_its_limbo_ends(
    cluster: Cluster,
) -> None:
    await cluster.start_bookie("b4")
    client = await cluster.client(1)
    ledgers = [
        await written(client, 40),
        await written(client, 25, ensemble_size=3, write_quorum=2),
        await written(client, 12, ensemble_size=4, write_quorum=2),
    ]
    node = await wipe(cluster, "b1")
    assert not node.storage.limbo.is_over
    keeper = await keeper_of(cluster, "b1")
    await keeper.walk()
    for writer in ledgers:
        metadata = await client.metadata(writer.ledger_id)
        assert await short_copies(cluster, metadata) == []
        if "b1" in metadata.fragments[0].bookies:
            assert is_fenced(node.storage, writer.ledger_id), "the fence may have been lost"
    assert keeper.status.unfinished == {}
    assert node.storage.limbo.is_over
    async with asyncio.timeout(30):
        while "unsure_through" in client.bookies.available["b1"].properties:
            await client.bookies.reload()
    # The copies are good on their own: all others go.
    for name in ("b2", "b3", "b4"):
        await cluster.stop_bookie(name)
    await all_is_there(await cluster.client(2), ledgers[0].ledger_id, 39)


async def test_a_partition_rolls_over_and_the_limbo_of_a_replaced_disk_ends(
    cluster: Cluster,
) -> None:
    """The bookie is named in an older fragment of an open ledger: the limbo lasted for hours."""
    await cluster.start_bookie("b4")
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker, rollover_age_ms=1 << 40))
    first = await partition.publish(batch(3, tag="a"))
    metadata = await (await cluster.client(1)).metadata(first.ledger_id)
    name = metadata.fragments[0].bookies[0]
    node = await wipe(cluster, name)
    keeper = await keeper_of(cluster, name, open_ledger_s=3600.0)

    for _ in range(400):
        await partition.publish(batch(1, tag="b"))
        await keeper.walk()
        if node.storage.limbo.is_over:
            break
        await asyncio.sleep(0.02)
    assert node.storage.limbo.is_over
    assert keeper.status.unfinished == {}
    assert (await values(partition))[:3] == ["a-0", "a-1", "a-2"]


async def test_an_idle_partition_rolls_over_what_keeps_a_bookie_in_limbo(
    cluster: Cluster,
) -> None:
    """Its state ledger was never rolled over: the bookie fenced it, and the owner lost it."""
    running = await cluster.start("A")
    broker = running.broker
    partition = await owned(broker, await make_topic(broker, rollover_age_ms=1 << 40))
    made, _ = await broker.topics.create_subscription(
        partition.name.topic_name, "s", SubscriptionSettings(start="earliest")
    )
    subscription = await partition.subscribe(made)
    await partition.publish(batch(3, tag="a"))
    first = partition._record.value.state_ledger
    assert first is not None
    client = await cluster.client(1)
    name = (await client.metadata(first)).fragments[0].bookies[0]
    node = await wipe(cluster, name)
    keeper = await keeper_of(cluster, name, open_ledger_s=0.0)
    await keeper.walk()
    assert not node.storage.limbo.is_over
    assert (await client.metadata(first)).state is LedgerState.OPEN, "its owner lives"
    assert "the broker that owns it" in keeper.status.unfinished[first]

    async with asyncio.timeout(60):
        while not node.storage.limbo.is_over:
            await partition.maintain()
            await keeper.walk()
            await asyncio.sleep(0.02)
    assert partition._record.value.state_ledger not in (None, first)
    assert partition.epoch == 1, "its owner never lost it"
    assert len(await subscription.receive("c", messages_max=10)) == 3
    await running.vanish()


async def test_an_open_ledger_whose_owner_is_gone_is_closed_after_a_while(
    cluster: Cluster,
) -> None:
    running = await cluster.start("A")
    partition = await owned(running.broker, await make_topic(running.broker))
    first = await partition.publish(batch(3, tag="a"))
    client = await cluster.client(1)
    metadata = await client.metadata(first.ledger_id)
    assert await is_owned_by_a_broker(cluster.store, metadata)
    other = await written(client, 2)
    assert not await is_owned_by_a_broker(cluster.store, await client.metadata(other.ledger_id))
    node = await wipe(cluster, metadata.fragments[0].bookies[0])
    keeper = await keeper_of(cluster, node.bookie_id, open_ledger_s=0.0)
    await keeper.walk()
    assert (await client.metadata(first.ledger_id)) == metadata
    await running.vanish()
    assert not await is_owned_by_a_broker(cluster.store, metadata)
    async with asyncio.timeout(60):
        while not node.storage.limbo.is_over:
            await keeper.walk()
            await asyncio.sleep(0.02)
    assert (await client.metadata(first.ledger_id)).last_entry == 0


async def test_after_its_limbo_a_bookie_takes_no_adds_to_old_ledgers_that_it_forgot(
    cluster: Cluster,
) -> None:
    client = await cluster.client(1)
    gone, old = await written(client, 3), await written(client, 3)
    await client.delete(gone.ledger_id)
    node = await wipe(cluster, "b1")
    await (await keeper_of(cluster, "b1")).walk()
    assert node.storage.limbo.is_over
    raw = await RawClient.connect(node)
    for ledger_id, code in ((gone.ledger_id, Code.UNKNOWN_STATE), (old.ledger_id + 1000, Code.OK)):
        raw.send(add_of(ledger_id, 0, key=KEY))
        answer: Any = await raw.answer()
        assert getattr(answer, "code", Code.OK) == code
    raw.writer.close()


async def test_a_bookie_that_was_down_fetches_what_it_missed(cluster: Cluster) -> None:
    client = await cluster.client(1)
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await add_many(writer, 10)
    await cluster.stop_bookie("b2")
    await add_many(writer, 10)
    await writer.close()
    node = await cluster.start_bookie("b2")
    metadata = await client.metadata(writer.ledger_id)
    assert [bookie for bookie, _ in await short_copies(cluster, metadata)] == ["b2"]
    keeper = await keeper_of(cluster, "b2")
    await keeper.walk()
    assert await short_copies(cluster, metadata) == []
    assert keeper.status.copied_entries == 10
    assert (await client.metadata(writer.ledger_id)) == metadata, "the record was right already"
    assert await node.storage.reads.held(writer.ledger_id) == [(0, 19)]
    await keeper.walk()
    assert keeper.status.copied_entries == 10, "nothing is fetched twice"


async def test_what_a_lost_bookie_held_moves_to_the_others(cluster: Cluster) -> None:
    client = await cluster.client(1)
    ledgers = [(await written(client, 30)).ledger_id for _ in range(6)]
    empty = await client.create()
    await empty.close()
    await cluster.start_bookie("b4")
    await cluster.start_bookie("b5")
    await cluster.stop_bookie("b1")
    keepers = [await keeper_of(cluster, name) for name in ("b2", "b3", "b4", "b5")]
    await asyncio.gather(*(keeper.walk() for keeper in keepers))
    for ledger_id in ledgers:
        metadata = await client.metadata(ledger_id)
        assert "b1" not in metadata.fragments[0].bookies
        assert await short_copies(cluster, metadata) == []
        await all_is_there(client, ledger_id, 29)
    assert "b1" not in (await client.metadata(empty.ledger_id)).fragments[0].bookies
    assert sum(keeper.status.adopted for keeper in keepers) == len(ledgers) + 1
    assert all(keeper.status.unfinished == {} for keeper in keepers)
    assert {k.status.adopted > 0 for k in keepers[:2]} == {False}, "they hold copies already"


async def test_a_bookie_that_is_only_away_is_waited_for(cluster: Cluster) -> None:
    client = await cluster.client(1)
    ledger_id = (await written(client, 10)).ledger_id
    await cluster.start_bookie("b4")
    await cluster.stop_bookie("b1")
    keeper = await keeper_of(cluster, "b4", lost_bookie_s=3600.0)
    await keeper.walk()
    assert keeper.status.adopted == 0
    assert "b1" in (await client.metadata(ledger_id)).fragments[0].bookies


async def test_an_open_ledger_whose_writer_is_gone_is_closed_and_copied(cluster: Cluster) -> None:
    client = await cluster.client(1)
    writer = await written(client, 20, close=False)
    await cluster.drop_client(client)
    await cluster.start_bookie("b4")
    await cluster.stop_bookie("b1")
    patient = await keeper_of(cluster, "b4", open_ledger_s=3600.0)
    await patient.walk()
    other = await cluster.client(2)
    assert (await other.metadata(writer.ledger_id)).state is LedgerState.OPEN
    assert "may still replace" in patient.status.unfinished[writer.ledger_id]
    keeper = await keeper_of(cluster, "b4")
    await keeper.walk()
    metadata = await other.metadata(writer.ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry == 19
    await keeper.walk()
    metadata = await other.metadata(writer.ledger_id)
    assert all("b1" not in fragment.bookies for fragment in metadata.fragments)
    assert await short_copies(cluster, metadata) == []


async def test_an_older_fragment_moves_under_a_writer_that_goes_on(cluster: Cluster) -> None:
    client = await cluster.client(1)
    for name in ("b4", "b5"):
        await cluster.start_bookie(name)
    await until(lambda: len(client.bookies.available) == 5)
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await add_many(writer, 20)
    lost = writer.metadata.fragments[0].bookies[0]
    await cluster.stop_bookie(lost)
    for _ in range(200):
        await add_many(writer, 1)
        if len(writer.metadata.fragments) > 1:
            break
        await asyncio.sleep(0.02)
    before = await client.metadata(writer.ledger_id)
    assert len(before.fragments) == 2
    keepers = [await keeper_of(cluster, name) for name in cluster.nodes]
    await asyncio.gather(*(keeper.walk() for keeper in keepers))
    metadata = await client.metadata(writer.ledger_id)
    assert metadata.state is LedgerState.OPEN
    assert lost not in metadata.fragments[0].bookies
    assert metadata.fragments[1] == before.fragments[1]
    await add_many(writer, 5)
    await writer.close()
    closed = await client.metadata(writer.ledger_id)
    assert closed.fragments[0] == metadata.fragments[0], "its close keeps what was moved"
    await all_is_there(client, writer.ledger_id, closed.last_entry)


async def test_a_bookie_that_lacks_an_older_stretch_does_not_vouch_for_the_ledger(
    cluster: Cluster,
) -> None:
    client = await cluster.client(1)
    writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
    while "b1" not in writer.metadata.fragments[0].bookies:
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
    await add_many(writer, 10)
    (other,) = set(writer.metadata.fragments[0].bookies) - {"b1"}
    await cluster.stop_bookie(other)
    await add_many(writer, 10)
    await writer.close()
    older, newer = (await client.metadata(writer.ledger_id)).fragments
    assert "b1" in older.bookies
    assert "b1" in newer.bookies
    node = await wipe(cluster, "b1")
    keeper = await keeper_of(cluster, "b1", lost_bookie_s=3600.0)
    await keeper.walk()
    assert await node.storage.reads.held(writer.ledger_id) == [(10, 19)], "the newer one is here"
    assert keeper._own.is_unsure(writer.ledger_id)
    assert not node.storage.limbo.is_over
    await cluster.start_bookie(other)
    await until(lambda: other in client.bookies.available)
    await keeper.walk()
    assert not keeper._own.is_unsure(writer.ledger_id)


async def test_what_nobody_has_is_told_and_the_record_stays(cluster: Cluster) -> None:
    client = await cluster.client(1)
    writer = await written(client, 10, ensemble_size=2, write_quorum=1, ack_quorum=1)
    metadata = await client.metadata(writer.ledger_id)
    lost = metadata.fragments[0].bookies[0]
    await cluster.stop_bookie(lost)
    keepers = [await keeper_of(cluster, name) for name in cluster.nodes]
    for keeper in keepers:
        await keeper.walk()
    assert await client.metadata(writer.ledger_id) == metadata
    assert any(
        "no replica returned it" in k.status.unfinished.get(writer.ledger_id, "") for k in keepers
    )


async def test_nobody_can_take_it_and_then_somebody_comes(cluster: Cluster) -> None:
    client = await cluster.client(1)
    ledger_id = (await written(client, 10)).ledger_id
    await cluster.stop_bookie("b1")
    keeper = await keeper_of(cluster, "b2")
    await keeper.walk()
    assert "no bookie can take" in keeper.status.unfinished[ledger_id]
    await cluster.start_bookie("b4")
    newcomer = await keeper_of(cluster, "b4")
    running = asyncio.create_task(newcomer.run())
    try:
        await until(lambda: newcomer.status.adopted, 60)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    metadata = await client.metadata(ledger_id)
    assert "b1" not in metadata.fragments[0].bookies
    assert await short_copies(cluster, metadata) == []


async def test_a_bookie_that_leaves_between_two_walks_is_lost_in_time(cluster: Cluster) -> None:
    """The next walk is due tomorrow; only the registry tells that a bookie is gone."""
    client = await cluster.client(1)
    ledger_id = (await written(client, 10)).ledger_id
    await cluster.start_bookie("b4")
    keeper = await keeper_of(cluster, "b4", lost_bookie_s=0.5)
    running = asyncio.create_task(keeper.run())
    try:
        await until(lambda: keeper.status.walks > 0, 60)
        await cluster.stop_bookie("b1")
        await until(lambda: keeper.status.adopted, 60)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert "b1" not in (await client.metadata(ledger_id)).fragments[0].bookies


async def test_a_damaged_copy_is_replaced(cluster: Cluster) -> None:
    client = await cluster.client(1)
    writer = await written(client, 10)
    node: BookieNode = cluster.nodes["b1"]
    await node.storage.checkpoint()
    await cluster.stop_bookie("b1")
    (log_path,) = (cluster.folder / "b1" / "ledgers").glob("*.log")
    data = bytearray(log_path.read_bytes())
    at = data.rindex(payload_of(4))
    data[at] ^= 1
    log_path.write_bytes(data)
    node = await cluster.start_bookie("b1")
    asked = await client.request("b1", Op.LIST_ENTRIES, {"ledger": writer.ledger_id})
    assert asked["runs"] == [[0, 9]], "the index knows nothing of it"
    with pytest.raises(BookieIOError):
        await node.storage.reads.read(writer.ledger_id, 4)
    assert node.storage.damages.current()
    keeper = await keeper_of(cluster, "b1")
    await keeper.walk()
    assert keeper.status.copied_entries >= 1
    assert payload_of(4) in await node.storage.reads.read(writer.ledger_id, 4)


@pytest.mark.long
async def test_a_bookie_looks_when_it_is_asked_to(cluster: Cluster) -> None:
    client = await cluster.client(1)
    with pytest.raises(BadRequest, match="keeps no copies"):
        await client.request("b1", Op.FETCH_COPIES, {})
    node = cluster.nodes["b1"]
    async with kept_copies(node, cluster.store, rng=random.Random(5)) as keeper:
        assert keeper is not None
        await until(lambda: keeper.status.walks > 0, 60)
        walks = keeper.status.walks
        assert await client.request("b1", Op.FETCH_COPIES, {}) == {}
        await until(lambda: keeper.status.walks > walks, 60)


async def test_two_adopters_do_no_harm(cluster: Cluster) -> None:
    """A bookie with another view of the cluster chooses another adopter: one of them succeeds."""
    client = await cluster.client(1)
    ledger_id = (await written(client, 30)).ledger_id
    await cluster.start_bookie("b4")
    await cluster.start_bookie("b5")
    await cluster.stop_bookie("b1")
    keepers = [await keeper_of(cluster, name) for name in ("b4", "b5")]
    for keeper in keepers:
        everybody = keeper._candidates
        keeper._candidates = lambda n, see=everybody, me=keeper._me: {  # type: ignore
            bookie: info for bookie, info in see(n).items() if bookie not in {"b4", "b5"} - {me}
        }
    await asyncio.gather(*(keeper.walk() for keeper in keepers))
    metadata = await client.metadata(ledger_id)
    assert len(set(metadata.fragments[0].bookies) & {"b4", "b5"}) == 1
    assert sum(keeper.status.adopted for keeper in keepers) == 1
    assert await short_copies(cluster, metadata) == []
