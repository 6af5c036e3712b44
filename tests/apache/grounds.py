"""A cluster for trials: a ZooKeeper, and numbered bookies of both kinds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import subprocess
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp

from octavo import AsyncClient
from octavo.ledger.client import LedgerClient
from octavo.ledger.quorum import quorum_of
from octavo.ledger.rereplication.copies import names, stretches
from octavo.metadata.ledgers import LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.store import MetadataStore, RecordNotFound
from octavo.protocol.answers import ReadAnswer
from octavo.protocol.codes import Code
from octavo.protocol.entry import digest_for, unpack_entry
from octavo.protocol.frames import read_request
from octavo.standalone.ports import free_port
from tests.interop.clients import payload_of
from tests.interop.processes import OCTAVO, ApacheBookie, Java, OurBookie, Process, Shell, Zookeeper
from tests.interop.talk import Talk
from tests.support.kit.history import Call
from tests.support.processes.audit import problems, stored, texts
from tests.support.processes.users import (
    SUBSCRIPTION,
    Consumer,
    Follower,
    Place,
    Publisher,
    Record,
    note_read,
    payload,
)
from tests.support.raw_bookie import until

Bookie: TypeAlias = ApacheBookie | OurBookie


@dataclass(slots=True)
class Grounds:
    folder: Path
    java: Java
    zookeeper: Zookeeper
    short: bool
    bookies: list[Bookie] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    _made: int = 0

    @property
    def shell(self) -> Shell:
        conf = self.folder / "shell.conf"
        conf.write_text(
            f"metadataServiceUri=zk+hierarchical://127.0.0.1:{self.zookeeper.port}/ledgers\n"
            f"journalDirectories={self.folder}/shell/journal\n"
            f"ledgerDirectories={self.folder}/shell/ledgers\n"
            "allowLoopback=true\nadvertisedAddress=127.0.0.1\nbookiePort=3181\n"
        )
        return Shell(self.java, conf)

    def add_octavo(self, *words: str) -> OurBookie:
        bookie = OurBookie(self._next_folder("octavo"), self.zookeeper.port, *words)
        self.bookies.append(bookie)
        bookie.start()
        return bookie

    def add_apache(self, more: str = "") -> ApacheBookie:
        folder = self._next_folder("apache")
        bookie = ApacheBookie(self.java, folder, self.zookeeper.port, more)
        self.bookies.append(bookie)
        bookie.start()
        return bookie

    def start(self, name: str, command: list[str]) -> Process:
        """Start another process, with output in `<name>.log`; it is killed at the end."""
        process = Process(name, command, self.folder)
        self.processes.append(process)
        return process

    def _next_folder(self, kind: str) -> Path:
        self._made += 1
        folder = self.folder / f"{kind}-{self._made}"
        folder.mkdir()
        return folder


@dataclass(frozen=True, slots=True)
class Ask:
    lib: Path
    """The folder with BookKeeper's jars."""
    folder: Path
    short: bool

    @contextlib.contextmanager
    def grounds(self, *, laid_out: bool = True) -> Iterator[Grounds]:
        """Start a ZooKeeper with BookKeeper's tree, laid out by Apache's shell."""
        java = Java(self.lib, self.folder)
        found = Grounds(self.folder, java, Zookeeper(java), self.short)
        try:
            found.zookeeper.start()
            if laid_out:
                found.shell("initnewcluster")
            yield found
        finally:
            for one in (*reversed(found.processes), *reversed(found.bookies)):
                one.kill()
            found.zookeeper.kill()


SOURCE = Path(__file__).with_name("LongWriter.java")
ENTRIES = 2_000
END_S = 120
PASSWORD = b"secret"


class LongWriter:
    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._process: asyncio.subprocess.Process | None = None
        self.ledgers: dict[int, int] = {}
        self.errors: list[str] = []
        self.result: dict[str, int] = {}

    async def start(self, wire: str) -> None:
        """Begin to write, in frames of `wire` (v2 or v3), on 3/3/2."""
        grounds = self._grounds
        classes = grounds.folder / "classes"
        await asyncio.to_thread(grounds.java.compile, SOURCE, classes)
        uri = f"zk+hierarchical://127.0.0.1:{grounds.zookeeper.port}/ledgers"
        words = ("LongWriter", uri, wire, "3", "3", "2", str(ENTRIES))
        log = (grounds.folder / f"long-writer-{wire}.log").open("ab")
        with log:
            self._process = await asyncio.create_subprocess_exec(
                *grounds.java.command(*words, classes=classes),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def finish(self) -> None:
        assert self._process is not None
        async with asyncio.timeout(END_S):
            out, _ = await self._process.communicate(b"stop\n")
        for line in out.decode().splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "LEDGER":
                ledger, entries = map(int, rest.split())
                self.ledgers[ledger] = entries
            elif kind == "FAILED":
                self.errors.append(rest)
            elif kind == "RESULT":
                self.result = {
                    name: int(number) for name, number in (one.split("=") for one in rest.split())
                }

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def wrong_by_us(self, client: LedgerClient) -> list[str]:
        wrong = []
        for ledger, entries in self.ledgers.items():
            reader = await client.open(ledger, password=PASSWORD)
            if reader.last_add_confirmed != entries - 1:
                wrong.append(f"ledger {ledger} ends at {reader.last_add_confirmed}, not {entries}")
            wrong += [
                f"ledger {ledger} entry {entry.entry_id} has other bytes"
                async for entry in reader.entries(0, entries - 1)
                if bytes(entry.payload) != payload_of(entry.entry_id)
            ]
            await reader.close()
        return wrong


MANY_LEDGERS_SOURCE = Path(__file__).with_name("ManyLedgers.java")
WRITE_S = 180


@dataclass(frozen=True, slots=True)
class Kind:
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    entries: int = 40
    digest: str = "CRC32C"
    is_open: bool = False

    def __str__(self) -> str:
        sizes = f"{self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}/{self.entries}"
        return f"{sizes}/{self.digest}/{'open' if self.is_open else 'close'}"


def write_ledgers(grounds: Grounds, wire: str, kinds: Sequence[Kind]) -> dict[int, Kind]:
    """Let Apache's client write one ledger of each of `kinds`, and die."""
    classes = grounds.folder / "classes"
    if not classes.exists():
        grounds.java.compile(MANY_LEDGERS_SOURCE, classes)
    uri = f"zk+hierarchical://127.0.0.1:{grounds.zookeeper.port}/ledgers"
    words = (uri, wire, PASSWORD.decode(), *map(str, kinds))
    command = grounds.java.command("ManyLedgers", *words, classes=classes)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_S)
    found = [int(line.split()[1]) for line in done.stdout.splitlines() if line[:7] == "LEDGER "]
    assert len(found) == len(kinds), f"not all were written:\n{(done.stdout + done.stderr)[-3000:]}"
    return dict(zip(found, kinds, strict=True))


async def ledgers_naming(store: MetadataStore, bookie_id: str) -> list[int]:
    ledgers = LedgerStore(store)
    found = []
    for ledger_id in await ledgers.list():
        metadata, _ = await ledgers.read(ledger_id)
        if bookie_id in names(metadata):
            found.append(ledger_id)
    return found


async def marked(store: MetadataStore) -> list[str]:
    async def below(path: str) -> list[str]:
        children = await store.children(path)
        found = [name for name in children if name.startswith("urL")]
        for name in set(children) - set(found):
            found += await below(f"{path}/{name}")
        return found

    return await below("/ledgers/underreplication/ledgers")


async def flaws(
    store: MetadataStore, written: Mapping[int, Kind], live: Collection[str]
) -> list[str]:
    """Return the faults of these ledgers; empty when all are whole: closed at the last entry, on
    `live` bookies only, no fragment the same bookie twice, every entry served by each bookie as
    it was written."""
    found: list[str] = []
    for ledger_id, kind in written.items():
        try:
            metadata, _ = await LedgerStore(store).read(ledger_id)
        except RecordNotFound:
            found.append(f"ledger {ledger_id} ({kind}): its record is gone")
            continue
        wrong = _wrong_record(metadata, kind.entries - 1, live) or await _wrong_copies(metadata)
        found += [f"ledger {ledger_id} ({kind}): {what}" for what in wrong]
    return found


def _wrong_record(metadata: LedgerMetadata, last: int, live: Collection[str]) -> list[str]:
    found = []
    if (metadata.state, metadata.last_entry) != (LedgerState.CLOSED, last):
        found.append(f"{metadata.state.name} at {metadata.last_entry}, not closed at {last}")
    if gone := names(metadata) - set(live):
        found.append(f"it names {', '.join(sorted(gone))}")
    twice = [one for one in metadata.fragments if len(set(one.bookies)) < len(one.bookies)]
    return [*found, *(f"a bookie stands twice in {one}" for one in twice)]


async def _wrong_copies(metadata: LedgerMetadata) -> list[str]:
    quorum = quorum_of(metadata)
    wanted: dict[str, list[int]] = {}
    for stretch in stretches(metadata):
        for entry_id in range(stretch.first, stretch.last + 1):
            for position in quorum.write_set(entry_id):
                wanted.setdefault(stretch.fragment.bookies[position], []).append(entry_id)
    lists = await asyncio.gather(*(_unread(metadata, *one) for one in wanted.items()))
    return [what for found in lists for what in found]


async def _unread(metadata: LedgerMetadata, bookie: str, entry_ids: list[int]) -> list[str]:
    ledger_id = metadata.ledger_id
    digest = digest_for(metadata.digest_type, metadata.password)
    async with await Talk.with_bookie(int(bookie.rpartition(":")[2])) as talk:
        answers = await talk.ask(*(read_request(ledger_id, one) for one in entry_ids))
    found = []
    read = set()
    for answer in answers:
        assert isinstance(answer, ReadAnswer), answer
        if answer.code != Code.OK:
            found.append(f"entry {answer.entry_id} on {bookie}: code {answer.code}")
            continue
        entry = unpack_entry(digest, ledger_id, answer.entry_id, answer.entry)
        if bytes(entry.payload) != payload_of(answer.entry_id):
            found.append(f"entry {answer.entry_id} on {bookie} is another one")
        read.add(answer.entry_id)
    if not found and read != set(entry_ids):
        found.append(f"{bookie} does not answer for {sorted(set(entry_ids) - read)}")
    return found


SESSION_MS = 4_000
SETTLE_S = 60.0
ANSWER_S = 45.0
PARTITIONS = 3
SETTINGS = f"""session_timeout_ms = {SESSION_MS}
log_format = "json"

[broker]
state_ledger_entries_max = 200
trim_interval_ms = 500
tail_cache_bytes_max = 65536
"""
"""So small that state ledgers are replaced, and that readers at the end need the bookies."""


def metadata_of(grounds: Grounds) -> str:
    return f"zk://127.0.0.1:{grounds.zookeeper.port}/"


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.3)


def auto_recovery(grounds: Grounds) -> Process:
    conf = grounds.folder / "auto-recovery.conf"
    port = grounds.zookeeper.port
    conf.write_text(
        f"metadataServiceUri=zk+hierarchical://127.0.0.1:{port}/ledgers\n"
        "allowLoopback=true\nadvertisedAddress=127.0.0.1\n"
        "openLedgerRereplicationGracePeriod=2000\nrwRereplicateBackoffMs=1000\n"
        "rereplicationEntryBatchSize=200\n"
    )
    main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
    return grounds.start("auto-recovery", grounds.java.command(main, "--conf", str(conf)))


class OurBroker:
    def __init__(self, grounds: Grounds, name: str) -> None:
        self.name = name
        self._grounds = grounds
        self._port = free_port()
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        config = self._grounds.folder / f"{self.name}.toml"
        config.write_text(SETTINGS)
        command = [str(OCTAVO), "broker", "--metadata", metadata_of(self._grounds)]
        command += ["--port", str(self._port), "--broker-id", self.name, "--config", str(config)]
        self._process = self._grounds.start(self.name, command)
        self._process.wait_until_listening(self._port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


class Singles:
    """Publishes messages singly, each after the answer to the message before, without repeats.
    It asks brokers in turn, so that half of the messages are forwarded."""

    def __init__(self, urls: list[str], topic: str, record: Record, name: str) -> None:
        self._urls = itertools.cycle([f"{url}/v1/topics/public/{topic}/messages" for url in urls])
        self._record = record
        self._name = name
        self.stopping = False
        self.acked = 0
        self.failed: list[str] = []
        self.longest_s = 0.0

    async def run(self, rate: float) -> None:
        loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for number in itertools.count():
                if self.stopping:
                    return
                since = loop.time()
                await self._send(session, number)
                self.longest_s = max(self.longest_s, loop.time() - since)
                await asyncio.sleep(1 / rate)

    async def _send(self, session: aiohttp.ClientSession, number: int) -> None:
        record, text = self._record, payload(self._name, number)
        key = f"{self._name}-k{number % 5}"
        record.sent += 1
        record.keys[text] = key
        one = record.history.invoke(self._name, Call.SEND, value=text, key=key)
        headers = {"Content-Type": "text/plain", "Octavo-Key": key}
        try:
            async with session.post(next(self._urls), data=text.encode(), headers=headers) as found:
                answer: dict[str, Any] = await found.json()
                if found.status != 200:
                    raise aiohttp.ClientError(f"{found.status} {answer}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            record.history.info(one, str(error))
            self.failed.append(f"{text[-30:]}: {type(error).__name__} {error}")
            return
        first = answer["first"]
        record.history.ok(one, first["offset"], log=str(first["partition"]))
        record.acked += 1
        self.acked += 1


class Users:
    """The users of a topic: batches, NDJSON, single messages; a shared subscription, an
    exclusive."""

    def __init__(self, urls: list[str], topic: str, seed: int = 1) -> None:
        self.urls = urls
        self.topic = topic
        self.record = Record()
        self._rng = random.Random(seed)
        self.client = AsyncClient(urls, attempt_s=10, retry_s=SETTLE_S, rng=self._rng)
        self.singles = Singles(urls, topic, self.record, f"{topic}-s")
        self._publishers = [
            Publisher(self.client, self.record, f"{topic}-b", topic=topic),
            Publisher(self.client, self.record, f"{topic}-n", topic=topic, encoding="ndjson"),
        ]
        self._publishing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self._follower: Follower | None = None
        self._found: dict[Place, tuple[str, str]] = {}

    async def start(self, rate: float = 60, **settings: Any) -> None:
        client, record = self.client, self.record
        settings.setdefault("rollover", {"entries": 150})
        await client.create_topic(self.topic, partitions=PARTITIONS, **settings)
        shared = await client.subscribe(self.topic, SUBSCRIPTION, type="shared", ack_timeout_s=3)
        exclusive = await client.subscribe(self.topic, Follower.NAME, ack_timeout_s=1)
        self._follower = Follower(exclusive, PARTITIONS, record)
        consumers = [Consumer(shared, record, self._rng, PARTITIONS, name) for name in ("c0", "c1")]
        runs = [self.singles.run(rate), *(one.run(rate) for one in self._publishers)]
        self._publishing = [asyncio.create_task(run) for run in runs]
        eager = [self._follower.run(), *(one.run() for one in consumers)]
        self._consuming = [asyncio.create_task(run) for run in eager]

    async def more(self, count: int = 150) -> None:
        goal = self.record.acked + count
        await until(lambda: self.record.acked >= goal, SETTLE_S)

    async def finish(self) -> list[str]:
        """Stop publishing, wait until all is consumed, read everything, and return the faults."""
        self.singles.stopping = True
        for one in self._publishers:
            one.stopping = True
        assert self._follower is not None
        try:
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*self._publishing)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + SETTLE_S
            while True:
                found = self._found = await stored(self.urls, PARTITIONS, self.topic)
                ends = [sum(place[0] == n for place in found) for n in range(PARTITIONS)]
                consumed = self.record.consumed == set(found) and self._follower.done == ends
                if consumed or loop.time() >= deadline:
                    break
                await asyncio.sleep(0.2)
        finally:
            await self.stop()
        history = self.record.history
        for name in (SUBSCRIPTION, Follower.NAME):
            history.add_done("auditor", Call.DRAIN, group=name)
        note_read(self.record, "auditor", texts(found))
        left = len(set(found) - self.record.consumed)
        wrong = [f"{left} messages were not acked by the subscription"] if left else []
        if self._follower.done != ends:
            wrong.append(f"the exclusive subscription came to {self._follower.done}, not {ends}")
        return [*wrong, *problems(self.record, found)]

    async def read_again(self) -> list[str]:
        now = await stored(self.urls, PARTITIONS, self.topic)
        return [f"{place}: {text!r}" for place, (text, _) in (self._found.items() ^ now.items())]

    async def stop(self) -> None:
        tasks = (*self._publishing, *self._consuming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()
