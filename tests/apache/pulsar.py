"""Pulsar, unmodified, on our bookies: in v2, its default, and switched to v3. Messages are
counted by content (`PulsarTalk.java`), and answers after a restart came from bookies. Pulsar
gets the path of our ledgers, or our bookies join the tree that it laid out. Left out:
offloading, since its offloaders are not on Maven Central; and batch reads, which no broker
before 5.0 sends."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from octavo.metadata.ledgers import LedgerMetadata, LedgerStore
from octavo.metadata.opening import open_store
from octavo.metadata.store import RecordNotFound
from tests.apache.grounds import Ask, Bookie, Grounds
from tests.apache.matrix import Matrix
from tests.apache.pulsar_broker import STEPS, VERSION, WIRES, PulsarCluster, Wire, admin_path, until
from tests.interop.checks import Checks
from tests.interop.ours import OurBookie

CLIENT = f"Pulsar {VERSION}"
KEYS = 1000
SPACE_S = 120
# Deleted ledgers must leave the disks while a row waits.
SOON = (
    *("--set", f"entry_log_bytes_max={2**20}"),
    *("--set", "gc_interval_ms=1000", "--set", "gc_quarantine_ms=1000"),
    *("--set", "gc_minor_interval_ms=2000", "--set", "gc_major_interval_ms=4000"),
    *("--set", f"gc_bytes_per_s={256 * 2**20}"),
)


def pulsar(matrix: Matrix, ask: Ask) -> None:
    for wire in WIRES:
        with _part(ask, wire, "cluster").grounds(laid_out=False) as grounds:
            _on_our_cluster(matrix, grounds, wire)
        with _part(ask, wire, "own-tree").grounds(laid_out=False) as grounds:
            _in_its_own_tree(matrix, grounds, wire)
        with _part(ask, wire, "mixed").grounds() as grounds:
            _on_both_kinds(matrix, grounds, wire)


def _part(ask: Ask, wire: Wire, name: str) -> Ask:
    return Ask(ask.lib, ask.folder / f"{name}-{'v2' if wire.v2 else 'v3'}", ask.short)


@dataclass(slots=True)
class _Play:
    grounds: Grounds
    pulsar: PulsarCluster
    root: str

    @classmethod
    def at(cls, grounds: Grounds, wire: Wire, root: str, *, told: bool) -> _Play:
        """Pulsar is `told` the path of the bookies' ledgers, or keeps its metadata in `root`."""
        zookeeper = f"127.0.0.1:{grounds.zookeeper.port}"
        cluster = PulsarCluster(
            grounds.folder / "pulsar",
            f"zk:{zookeeper}{'/pulsar' if told else root}",
            wire,
            bookies=f"zk+hierarchical://{zookeeper}{root}/ledgers" if told else "",
            entries_per_ledger=100 if grounds.short else 1000,
        )
        return cls(grounds, cluster, root)

    def add(self) -> OurBookie:
        url = f"zk://127.0.0.1:{self.grounds.zookeeper.port}{self.root or '/'}"
        return self.grounds.add_octavo("--metadata", url, *SOON)

    def records(self, ledgers: list[int]) -> dict[int, LedgerMetadata]:
        return asyncio.run(self._records(ledgers))

    async def _records(self, ledgers: list[int]) -> dict[int, LedgerMetadata]:
        store = open_store(f"zk://127.0.0.1:{self.grounds.zookeeper.port}{self.root or '/'}")
        await store.start()
        found = {}
        try:
            for ledger in ledgers:
                with contextlib.suppress(RecordNotFound):
                    found[ledger] = (await LedgerStore(store).read(ledger))[0]
        finally:
            await store.close()
        return found

    def members(self, topic: str) -> list[Bookie]:
        last = self.pulsar.ledgers(topic)[-1]
        ids = self.records([last])[last].fragments[-1].bookies
        return [one for one in self.grounds.bookies if one.bookie_id in ids]

    def space(self, bookies: list[OurBookie]) -> int:
        total = 0
        for log in (log for one in bookies for log in one.ledgers.glob("*.log")):
            with contextlib.suppress(FileNotFoundError):
                total += log.stat().st_size
        return total


def _on_our_cluster(matrix: Matrix, grounds: Grounds, wire: Wire) -> None:
    play = _Play.at(grounds, wire, "/octavo", told=True)
    for _ in range(4):
        play.add()
    try:
        with matrix.row(CLIENT, wire.name, "told where our ledgers are, it joins") as checks:
            play.pulsar.lay_out()
            play.pulsar.start()
            _written_and_read_again(checks, play, "first", 2000)
        _death(matrix, play, wire)
        _trimming(matrix, play, wire)
        _cursors(matrix, play, wire)
        _compaction(matrix, play, wire)
        _key_shared(matrix, play, wire)
        _deletion(matrix, play, wire)
    finally:
        play.pulsar.kill()


def _in_its_own_tree(matrix: Matrix, grounds: Grounds, wire: Wire) -> None:
    operation = "lays out the tree itself; our bookies join"
    play = _Play.at(grounds, wire, "/laid-out", told=False)
    try:
        with matrix.row(CLIENT, wire.name, operation) as checks:
            play.pulsar.lay_out()
            for _ in range(3):
                play.add()
            play.pulsar.start()
            _written_and_read_again(checks, play, "first", 2000)
            ledgers = play.pulsar.ledgers(topic_of("first"))
            checks.equal("we find its ledgers' records", list(play.records(ledgers)), ledgers)
    finally:
        play.pulsar.kill()


def _on_both_kinds(matrix: Matrix, grounds: Grounds, wire: Wire) -> None:
    """One Apache bookie and two of ours in each ensemble; then Apache's dies."""
    operation = "one bookie of Apache's and two of ours; Apache's dies"
    play = _Play.at(grounds, wire, "", told=True)
    apaches = grounds.add_apache()
    for _ in range(2):
        play.add()
    try:
        with matrix.row(CLIENT, wire.name, operation) as checks:
            play.pulsar.lay_out()
            play.pulsar.start()
            count = 20_000 if grounds.short else 200_000
            _written_and_read_again(checks, play, "first", count)
            topic = topic_of("first")
            made = play.records(play.pulsar.ledgers(topic))
            on_it = [apaches.bookie_id in one.fragments[0].bookies for one in made.values()]
            checks.holds("each ledger is on bookies of both kinds", all(on_it), made)
            apaches.kill()
            play.add()
            play.pulsar.restart()
            found = play.pulsar.talk("read", topic, KEYS, "plain")
            checks.equal("ours alone have it all", _content(found), (count, 0, 0, 0))
            more = play.pulsar.talk("produce", topic, count, 1000, KEYS, "single")
            checks.equal("and what comes now", more["acked"], 1000)
    finally:
        play.pulsar.kill()


def topic_of(name: str) -> str:
    return f"persistent://public/default/{name}"


def _content(found: dict[str, float]) -> tuple[float, ...]:
    """Return (messages by content, repeated, with wrong content, out of their key's order)."""
    return tuple(found[name] for name in ("distinct", "repeated", "wrong", "unordered"))


def _written_and_read_again(checks: Checks, play: _Play, name: str, count: int) -> None:
    topic = topic_of(name)
    play.pulsar.create(topic, "keep")
    made = play.pulsar.talk("produce", topic, 0, count, KEYS, "batched")
    checks.equal("every message is acked", made["acked"], count)
    play.pulsar.restart()
    found = play.pulsar.talk("read", topic, KEYS, "plain")
    checks.equal("a broker that restarted reads them all", _content(found), (count, 0, 0, 0))


def _death(matrix: Matrix, play: _Play, wire: Wire) -> None:
    count = 50_000 if play.grounds.short else 1_000_000
    topic = topic_of("load")
    died: list[Bookie] = []

    def on_step(step: int) -> None:
        if step == STEPS * 2 // 5:
            died.append(play.members(topic)[0])
            died[0].kill()

    with matrix.row(
        CLIENT, wire.name, f"{count:,} messages through a bookie's kill −9 and replacement; 3/3/2"
    ) as checks:
        play.pulsar.create(topic, "keep")
        found = play.pulsar.talk("load", topic, count, KEYS, on_step=on_step)
        checks.equal(
            f"all are acked, none is lost ({found['seconds']} s, {found['repeated']:.0f} twice)",
            (found["acked"], found["lost"], found["wrong"]),
            (count, 0, 0),
        )
        checks.equal("in the order of their keys", found["unordered"], 0)
        ledgers = play.pulsar.ledgers(topic)
        records = play.records(ledgers)
        dead = died[0].bookie_id
        runs = [one for record in records.values() for one in record.fragments]
        changed = [ledger for ledger, record in records.items() if len(record.fragments) > 1]
        checks.holds(
            f"the dead bookie held some of it; {len(changed)} ledgers got others in their midst",
            any(dead in run.bookies for run in runs),
            records,
        )
        last = records[ledgers[-1]].fragments[-1].bookies
        checks.holds("what comes now goes to others", dead not in last, last)
        play.pulsar.restart()
        again = play.pulsar.talk("read", topic, KEYS, "plain")
        checks.equal("a broker that restarted reads them all", again["distinct"], count)
        checks.equal("as they were", (again["wrong"], again["unordered"]), (0, 0))
        died[0].start()


def _trimming(matrix: Matrix, play: _Play, wire: Wire) -> None:
    topic = topic_of("load")
    operation = "ledgers roll over, are trimmed, and leave our disks"
    with matrix.row(CLIENT, wire.name, operation) as checks:
        ours = [one for one in play.grounds.bookies if isinstance(one, OurBookie)]
        before = play.pulsar.ledgers(topic)
        checks.holds("the topic has many ledgers", len(before) > 3, before)
        full = play.space(ours)
        path = admin_path(topic)
        play.pulsar.ask("DELETE", f"{path}/subscription/keep")
        play.pulsar.ask("POST", f"{path}/trim")
        checks.holds(
            "those that all have acked have no record any more",
            until(lambda: not play.records(before[:-1]), SPACE_S),
        )
        gone = until(lambda: play.space(ours) < full / 3, SPACE_S)
        checks.holds("their space is free again", gone, f"{full} bytes, now {play.space(ours)}")


def _cursors(matrix: Matrix, play: _Play, wire: Wire) -> None:
    topic, count = topic_of("cursors"), 3000
    with matrix.row(CLIENT, wire.name, "cursors with holes survive a broker's restart") as checks:
        play.pulsar.create(topic, "stopped", "killed")
        play.pulsar.talk("produce", topic, 0, count, KEYS, "single")
        play.pulsar.talk("ack", topic, "stopped", KEYS, count, 0)
        play.pulsar.restart()
        left = play.pulsar.talk("drain", topic, "stopped", KEYS, 20, 0)
        checks.equal(
            "only what was not acked comes again", (left["thirds"], left["received"]), (1000, 1000)
        )
    with matrix.row(CLIENT, wire.name, "after a broker's kill −9, unacked messages come again") as (
        checks
    ):
        play.pulsar.talk("ack", topic, "killed", KEYS, count, 1)
        play.pulsar.kill()
        play.pulsar.start()
        left = play.pulsar.talk("drain", topic, "killed", KEYS, 20, 1)
        checks.equal("each of them comes again", (left["thirds"], left["wrong"]), (1000, 0))


def _compaction(matrix: Matrix, play: _Play, wire: Wire) -> None:
    topic, keys = topic_of("compacted"), 50
    path = admin_path(topic)
    with matrix.row(CLIENT, wire.name, "a topic is compacted, twice, and read compacted") as checks:
        play.pulsar.create(topic, "keep")
        for first in (0, 5000):
            play.pulsar.talk("produce", topic, first, 5000, keys, "batched")
            play.pulsar.ask("PUT", f"{path}/compaction")

            def ended() -> bool:
                return bool(play.pulsar.ask("GET", f"{path}/compaction")["status"] != "RUNNING")

            checks.holds("the compaction ends", until(ended, 120))
            told = play.pulsar.ask("GET", f"{path}/compaction")
            checks.equal("well", told["status"], "SUCCESS")
            found = play.pulsar.talk("read", topic, keys, "compacted")
            checks.equal(
                "the last message of each key is left",
                (found["received"], found["lowest"], found["highest"], found["wrong"]),
                (keys, first + 4950, first + 4999, 0),
            )
        play.pulsar.restart()
        found = play.pulsar.talk("read", topic, keys, "compacted")
        checks.equal("also after a restart", (found["received"], found["lowest"]), (keys, 9950))
        found = play.pulsar.talk("read", topic, keys, "plain")
        checks.equal("what was not compacted is there", _content(found), (10_000, 0, 0, 0))


def _key_shared(matrix: Matrix, play: _Play, wire: Wire) -> None:
    topic, count = topic_of("shared"), 20_000
    operation = "a key-shared subscription gives each message at least once; a consumer dies"
    with matrix.row(CLIENT, wire.name, operation) as checks:
        play.pulsar.create(topic, "keep")
        play.pulsar.talk("produce", topic, 0, count, KEYS, "batched")
        found = play.pulsar.talk("shared", topic, "team", KEYS, count)
        checks.equal("each has come", (found["distinct"], found["wrong"]), (count, 0))
        checks.holds("the dead one had some", found["died_with"] > 0, found)


def _deletion(matrix: Matrix, play: _Play, wire: Wire) -> None:
    operation = "a topic and a namespace are deleted, with their ledgers"
    with matrix.row(CLIENT, wire.name, operation) as checks:
        topic = topic_of("deleted")
        play.pulsar.ask("PUT", "namespaces/public/gone", {"bundles": {"numBundles": 1}})
        other = "persistent://public/gone/deleted"
        ledgers = []
        for one in (topic, other):
            play.pulsar.create(one, "keep")
            play.pulsar.talk("produce", one, 0, 2000, KEYS, "batched")
            ledgers += play.pulsar.ledgers(one)
        checks.equal("they have ledgers", list(play.records(ledgers)), ledgers)
        play.pulsar.ask("DELETE", f"{admin_path(topic)}?force=true")
        play.pulsar.ask("DELETE", "namespaces/public/gone?force=true")
        left = play.pulsar.ask("GET", "namespaces/public")
        checks.holds("the namespace is gone", "public/gone" not in left, left)
        checks.holds("the ledgers are", until(lambda: not play.records(ledgers), SPACE_S))
