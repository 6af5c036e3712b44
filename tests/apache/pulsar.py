"""A Pulsar cluster of a broker as published: fetched, laid out, started, called, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.metadata.ledgers import LedgerMetadata, LedgerStore
from octavo.metadata.opening import open_store
from octavo.metadata.store import RecordNotFound
from octavo.standalone.ports import free_port
from tests.apache.grounds import Ask, Bookie, Grounds
from tests.apache.matrix import Matrix
from tests.interop.processes import Java, OurBookie, Process, fetch
from tests.interop.talk import Checks

VERSION = "4.2.4"
SOURCE = Path(__file__).with_name("PulsarTalk.java")
STEPS = 50
START_S = 180
TALK_S = 1800

# Imported as a BOM, Pulsar's parent gives its jars the versions of its build. Log4j comes with
# its distribution only.
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>octavo.interop</groupId><artifactId>pulsar</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencyManagement><dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId>
      <version>{VERSION}</version><type>pom</type><scope>import</scope></dependency>
  </dependencies></dependencyManagement>
  <dependencies>
    <dependency><groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j2-impl</artifactId></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-core</artifactId></dependency>
  </dependencies>
</project>
"""

# Ledgers are small, so that topics have many; features that the rows do not need are off.
CONF = """clusterName=octavo
metadataStoreUrl={metadata}
configurationMetadataStoreUrl={metadata}
advertisedAddress=127.0.0.1
bindAddress=127.0.0.1
brokerServicePort={port}
webServicePort={web_port}
bookkeeperUseV2WireProtocol={v2}
managedLedgerDefaultEnsembleSize=3
managedLedgerDefaultWriteQuorum=3
managedLedgerDefaultAckQuorum=2
managedLedgerMaxEntriesPerLedger={entries}
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerCacheSizeMB=64
managedLedgerDefaultMarkDeleteRateLimit=10
defaultRetentionTimeInMinutes=0
defaultRetentionSizeInMB=0
defaultNumberOfNamespaceBundles=1
brokerDeleteInactiveTopicsEnabled=false
forceDeleteNamespaceAllowed=true
loadBalancerEnabled=false
transactionCoordinatorEnabled=false
systemTopicEnabled=false
topicLevelPoliciesEnabled=false
functionsWorkerEnabled=false
webSocketServiceEnabled=false
backlogQuotaCheckEnabled=false
"""


def jars() -> Path:
    return fetch(f"Pulsar {VERSION}", POM)


@dataclass(frozen=True, slots=True)
class Wire:
    name: str
    v2: bool


WIRES = (Wire("v2, its default", True), Wire("v3", False))


class PulsarCluster:
    """One broker, which can be restarted, and its client. `bookies` is a metadata service URI
    with the ledgers' root, or empty: Pulsar then lays out and uses its own tree."""

    def __init__(
        self,
        folder: Path,
        metadata: str,
        wire: Wire,
        *,
        bookies: str = "",
        entries_per_ledger: int,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.web_port = free_port(), free_port()
        self._java = Java(jars(), folder, memory_mb=512)
        self._metadata = metadata
        self._bookies = bookies
        self._process: Process | None = None
        conf = CONF.format(
            metadata=metadata,
            port=self.port,
            web_port=self.web_port,
            v2=str(wire.v2).lower(),
            entries=entries_per_ledger,
        )
        if bookies:
            conf += f"bookkeeperMetadataServiceUri={bookies}\n"
        (folder / "broker.conf").write_text(conf)

    @property
    def broker(self) -> Process:
        assert self._process is not None
        return self._process

    def lay_out(self) -> None:
        main = "org.apache.pulsar.PulsarClusterMetadataSetup"
        words = ["--cluster", "octavo", "--metadata-store", self._metadata]
        words += ["--configuration-metadata-store", self._metadata]
        words += ["--web-service-url", f"http://127.0.0.1:{self.web_port}"]
        words += ["--broker-service-url", f"pulsar://127.0.0.1:{self.port}"]
        if self._bookies:
            words += ["--existing-bk-metadata-service-uri", self._bookies]
        done = subprocess.run(
            self._java.command(main, *words), capture_output=True, text=True, timeout=START_S
        )
        assert done.returncode == 0, f"{main}:\n{(done.stdout + done.stderr)[-3000:]}"
        self._java.compile(SOURCE, self.folder / "classes")

    def start(self) -> None:
        main = "org.apache.pulsar.PulsarBrokerStarter"
        command = self._java.command(main, "--broker-conf", str(self.folder / "broker.conf"))
        self._process = Process("broker", command, self.folder)
        self._process.wait_until(self._serves, "serve", START_S)

    def _serves(self) -> bool:
        try:
            return "octavo" in self.ask("GET", "clusters")
        except (OSError, AssertionError):
            return False

    def stop(self) -> None:
        self.broker.stop(START_S)
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Stop and start: its cache is empty, so its answers come from bookies."""
        self.stop()
        self.start()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.web_port}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise AssertionError(f"{method} {path}: {error.code} {said[:1000]}") from error
        return json.loads(text) if text else None

    def create(self, topic: str, *subscriptions: str) -> None:
        """Messages that a subscription has not acked are not trimmed."""
        self.ask("PUT", admin_path(topic))
        for name in subscriptions:
            self.ask("PUT", f"{admin_path(topic)}/subscription/{name}")

    def ledgers(self, topic: str) -> list[int]:
        found = self.ask("GET", f"{admin_path(topic)}/internalStats")
        return [one["ledgerId"] for one in found["ledgers"]]

    def talk(
        self, *words: object, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        """Return the findings of `PulsarTalk`. `on_step` is called at every fiftieth of a load."""
        command = self._java.command(
            "PulsarTalk",
            f"pulsar://127.0.0.1:{self.port}",
            *map(str, words),
            classes=self.folder / "classes",
        )
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            lines: list[str] = []
            step = 0
            late = threading.Timer(TALK_S, process.kill)
            late.start()
            try:
                for line in process.stdout:
                    lines.append(line)
                    if line.startswith("PROGRESS ") and on_step is not None:
                        on_step(step)
                        step += 1
            except BaseException:
                process.kill()
                raise
            finally:
                late.cancel()
        results = [line for line in lines if line.startswith("RESULT ")]
        assert len(results) == 1, f"{words}:\n{''.join(lines)[-4000:]}"
        pairs = (part.split("=", 1) for part in results[0].split()[1:])
        return {name: float(value) for name, value in pairs}


def admin_path(topic: str) -> str:
    return topic.replace("://", "/")


def until(holds: Callable[[], bool], within_s: float, every_s: float = 0.5) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(every_s)
    return holds()


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
