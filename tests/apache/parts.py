"""The parts of the matrix by name, and the small parts: DistributedLog, conversations, a read-only
bookie, and AutoRecovery over four bookies of which one dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from octavo.ledger.client import LedgerClient
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import MetadataStore
from octavo.protocol.entry import master_key
from octavo.protocol.frames import Flag
from tests.apache.brokers import brokers
from tests.apache.grounds import (
    PASSWORD,
    Ask,
    Grounds,
    Kind,
    flaws,
    ledgers_naming,
    marked,
    write_ledgers,
)
from tests.apache.matrix import Matrix
from tests.apache.move import move
from tests.apache.pulsar import pulsar
from tests.apache.shell import an_auditor, shell, shells_on, start_auto_recovery
from tests.interop.clients import (
    JavaClient,
    Said,
    answer,
    apache_by_us,
    apaches_client,
    apaches_client_on_ours,
    our_client,
    ours_by_apache,
    v3_conversation,
    write_lac,
)
from tests.interop.clients import add as v3_add
from tests.interop.clients import payload_of as payload_of_client
from tests.interop.conversation import add as v2_add
from tests.interop.conversation import payload_of, transcripts
from tests.interop.processes import (
    VERSION,
    Java,
    OurBookie,
    Peer,
    fetch,
    running,
    store_at,
)
from tests.interop.talk import Checks, Talk, told

CLIENT = f"DistributedLog {VERSION}"
SOURCE = Path(__file__).with_name("DistributedLogTalk.java")
TALK_S = 300
ROOT = "/octavo"
LATE_MS = 250
"""A record that a long poll missed comes with the next look, a second later."""

# As for BookKeeper, its ZooKeeper names metrics-core and snappy-java as optional only.
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>octavo.interop</groupId><artifactId>distributedlog</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.distributedlog</groupId>
      <artifactId>distributedlog-core</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>io.dropwizard.metrics</groupId>
      <artifactId>metrics-core</artifactId><version>4.2.30</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId>
      <artifactId>snappy-java</artifactId><version>1.1.10.7</version></dependency>
  </dependencies>
</project>
"""


class _Library:
    def __init__(self, grounds: Grounds) -> None:
        folder = grounds.folder / "distributedlog"
        self._java = Java(fetch(f"DistributedLog {VERSION}", POM), folder)
        self._classes = folder / "classes"
        self._zookeeper = f"127.0.0.1:{grounds.zookeeper.port}"
        self._java.compile(SOURCE, self._classes)

    def bind(self) -> None:
        self.talk("bind", self._zookeeper, f"{ROOT}/ledgers")

    def talk(self, *words: object) -> dict[str, int]:
        uri = f"distributedlog-bk://{self._zookeeper}/logs"
        command = self._java.command(
            "DistributedLogTalk", uri, *map(str, words), classes=self._classes
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=TALK_S)
        results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert len(results) == 1, f"{words}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        pairs = (part.split("=", 1) for part in results[0].split()[1:])
        return {name: int(value) for name, value in pairs}


def distributedlog(matrix: Matrix, ask: Ask) -> None:
    with ask.grounds(laid_out=False) as grounds:
        url = f"zk://127.0.0.1:{grounds.zookeeper.port}{ROOT}"
        for _ in range(3):
            grounds.add_octavo("--metadata", url)
        library = _Library(grounds)
        count = 2_000 if grounds.short else 20_000
        with matrix.row(CLIENT, "v3", "a namespace; a log is written and read") as checks:
            library.bind()
            made = library.talk("write", "plain", 0, count, "close")
            checks.equal("every record is acked", made["acked"], count)
            found = library.talk("read", "plain", count)
            checks.equal("and read as it was written", found["right"], count)
        with matrix.row(CLIENT, "v3", "a log is followed by long polls") as checks:
            found = library.talk("tail", "followed", 200, 50)
            checks.equal("each record comes", (found["followed"], found["wrong"]), (200, 0))
            late = f"half of them {found['late_us'] / 1000} ms after its ack or sooner"
            checks.holds(late, found["late_us"] < LATE_MS * 1000, found)
        with matrix.row(CLIENT, "v3", "a dead writer's log is recovered and continues") as checks:
            library.talk("write", "left", 0, count, "leave")
            made = library.talk("write", "left", count, count, "close")
            checks.equal("the next writer's records are acked", made["acked"], count)
            found = library.talk("read", "left", 2 * count)
            checks.equal("those of both are there", found["right"], 2 * count)
            checks.equal("in a segment each", found["segments"], 2)
        with matrix.row(CLIENT, "v3", "a log continues without one of four bookies") as checks:
            grounds.add_octavo("--metadata", url)
            grounds.bookies[0].kill()
            made = library.talk("write", "plain", count, count, "close")
            checks.equal("every record is acked", made["acked"], count)
            found = library.talk("read", "plain", 2 * count)
            checks.equal("and those before are there", found["right"], 2 * count)


THEIRS = f"Apache's client {VERSION}"
OURS = "Octavo's ledger client"
BOTH = "one bookie of each kind"


def conversations(matrix: Matrix, ask: Ask) -> None:
    with running(ask.lib, ask.folder) as peer:
        asyncio.run(_converse(matrix, peer, short=ask.short))


async def _converse(matrix: Matrix, peer: Peer, *, short: bool) -> None:
    node = OurBookie(peer.folder, peer.zookeeper.port)
    java = JavaClient(peer.java, peer.zookeeper.port)
    if not short:
        await asyncio.to_thread(java.compile)
    async with store_at(peer.zookeeper.port) as store:
        try:
            with matrix.row(OURS, "records", "reads what Apache's bookie registers") as checks:
                await apache_by_us(checks, peer, store)
            await asyncio.to_thread(node.start)
            with matrix.row("frames by hand", "v2", "bookies of both kinds answer alike") as checks:
                await transcripts(checks, peer, node, aloud=False)
            with matrix.row("frames by hand", "v3", "bookies of both kinds answer alike") as checks:
                await v3_conversation(checks, (peer.bookie.port, node.port))
            with matrix.row("BookieShell", "records", "reads our records") as checks:
                await ours_by_apache(checks, peer, store, node)
            if short:
                return
            with matrix.row(THEIRS, "v2 and v3", f"write, leave, recover, read; {BOTH}") as checks:
                await apaches_client(checks, peer, store, node, java)
            with matrix.row(OURS, "v2", f"write, leave, recover, read; {BOTH}") as checks:
                await our_client(checks, peer, store, node, java)
            with matrix.row(THEIRS, "v3, its defaults", "all of its calls; our bookies") as checks:
                await apaches_client_on_ours(checks, peer, store, node, java)
        finally:
            node.kill()


LEDGER = 7001
URGENT = 100
RECOVERY, HIGH = int(Flag.RECOVERY_ADD), int(Flag.HIGH_PRIORITY)


def read_only(matrix: Matrix, asked: Ask) -> None:
    with asked.grounds() as grounds:
        ports = (
            grounds.add_apache("forceReadOnlyBookie=true\n").port,
            grounds.add_octavo("--read-only").port,
        )
        asyncio.run(_ask_both(matrix, ports))


async def _ask_both(matrix: Matrix, ports: tuple[int, int]) -> None:
    operation = "adds to a read-only bookie: it refuses adds of replicators, and takes urgent adds"
    with matrix.row("frames by hand", "v2", operation) as checks:
        for what, flags in _FLAGS.items():
            theirs, ours = [await _v2(port, flags) for port in ports]
            checks.equal(what, ours, theirs)
    with matrix.row("frames by hand", "v3", operation) as checks:
        for said in _v3():
            v3_theirs, v3_ours = [await answer(port, said) for port in ports]
            checks.equal(said.what, v3_ours, v3_theirs)


_FLAGS = {
    "an add": 0,
    "a replicator's: RECOVERY_ADD": RECOVERY,
    "an urgent one": HIGH,
    "a recovery's: both": RECOVERY | HIGH,
}


async def _v2(port: int, flags: int) -> list[str]:
    async with await Talk.with_bookie(port) as talk:
        frame = v2_add(LEDGER, flags, payload_of(flags), flags=flags)
        return [told(one) for one in await talk.ask(frame)]


def _v3() -> Iterator[Said]:
    for entry, (what, flags) in enumerate(_FLAGS.items()):
        priority = URGENT if flags & HIGH else 0
        frame = v3_add(LEDGER + 1, entry, recovery=bool(flags & RECOVERY), priority=priority)
        yield Said(what, frame)
    yield Said("a LAC", write_lac(LEDGER + 1, 3, master_key(b"")))


OUR_CLIENT = f"Apache's AutoRecovery {VERSION}"

EACH = (
    Kind(2, 2, 2),
    Kind(3, 3, 2),
    Kind(3, 2, 2),
    Kind(3, 3, 3, digest="MAC"),
    Kind(2, 2, 2, is_open=True),
    Kind(3, 3, 2, is_open=True),
    Kind(3, 2, 2, entries=1),
    Kind(3, 3, 2, entries=1, is_open=True),
    Kind(3, 3, 2, entries=0),
    Kind(3, 3, 2, entries=0, is_open=True),
)
ROUNDS = 3
WHOLE_S = 240
QUIET_S = 8
LIVE = 3
PAUSE_S = 0.2
DOUBTS = ("copies_disagree", "replica_damaged", "add_refused", "copies_failed")

ASLEEP = ("--set", "keep_copies=false")
AWAKE = (
    *("--set", "lost_bookie_ms=4000"),
    *("--set", "copies_open_ledger_ms=2000"),
    *("--set", "copies_retry_ms=1000"),
)


def auto_recovery(matrix: Matrix, asked: Ask) -> None:
    for wire in ("v2", "v3"):
        for own, words in (("off", ASLEEP), ("on at the same time", AWAKE)):
            part = replace(asked, folder=asked.folder / f"{wire}-{own[:3].strip()}")
            operation = f"a bookie of ours dies, three and a spare; our re-replication {own}"
            note = "ledgers of ten kinds, some open, and three that are written meanwhile"
            with (
                matrix.row(OUR_CLIENT, wire, operation, note=note) as checks,
                part.grounds(laid_out=False) as one,
            ):
                asyncio.run(_a_bookie_dies(checks, one, wire, words))


async def _a_bookie_dies(
    checks: Checks, grounds: Grounds, wire: str, words: tuple[str, ...]
) -> None:
    bookies = [grounds.add_octavo(*words) for _ in range(4)]
    written = write_ledgers(grounds, wire, EACH * (1 if grounds.short else ROUNDS))
    async with store_at(grounds.zookeeper.port) as store:
        start_auto_recovery(grounds, wire)
        await an_auditor(store)
        lost, *others = bookies
        async with _writing(store) as writers:
            await asyncio.sleep(1)
            named = await ledgers_naming(store, lost.bookie_id)
            lost.kill()
            left = await left_of(store, lost.bookie_id, WHOLE_S)
            written |= await writers.closed()
        what = f"of {len(written)} ledgers, {len(named)} on the lost bookie, left"
        checks.equal(what, left, [])
        live = {bookie.bookie_id for bookie in others}
        settled = {one: kind for one, kind in written.items() if one in named or not kind.is_open}
        checks.equal("each entry is on all its replicas", await flaws(store, settled, live), [])
        before = await _versions(store, written)
        await asyncio.sleep(QUIET_S)
        checks.equal("no record changes any more", await _versions(store, written), before)
    with shells_on(grounds) as shells:
        answer = shells.ask(wire, "listunderreplicated")
    checks.contains("listunderreplicated finds none", answer.text, "ledger count {count=0}")
    for bookie in others:
        log = (bookie.folder / "octavo-bookie.log").read_text(errors="replace")
        odd = [line for line in log.splitlines() if any(word in line for word in DOUBTS)]
        checks.equal(f"nothing is in doubt on {bookie.bookie_id}", odd, [])


class _Writers:
    def __init__(self, writers: list[LedgerWriter]) -> None:
        self._writers = writers
        self._over = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(one)) for one in writers]

    async def _write(self, writer: LedgerWriter) -> int:
        for entry in itertools.count():
            await writer.append(payload_of_client(entry))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._over.wait()
                    return entry + 1
        raise AssertionError("it counts for ever")

    async def closed(self) -> dict[int, Kind]:
        """End them; return what they wrote. Raises the error of a refused add."""
        self._over.set()
        counts = await asyncio.gather(*self._tasks)
        for writer in self._writers:
            await writer.close()
        return {
            writer.ledger_id: Kind(3, 3, 2, entries=count)
            for writer, count in zip(self._writers, counts, strict=True)
        }


@contextlib.asynccontextmanager
async def _writing(store: MetadataStore) -> AsyncIterator[_Writers]:
    client = LedgerClient(store, rng=random.Random(3))
    await client.start()
    try:
        made = [
            await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
            for _ in range(LIVE)
        ]
        yield _Writers(made)
    finally:
        await client.close()


async def left_of(store: MetadataStore, bookie_id: str, patience_s: float) -> list[object]:
    """Return the ledgers that still name a bookie or are marked, once none is left or the time
    is over."""
    deadline = time.monotonic() + patience_s
    while True:
        left = [*await ledgers_naming(store, bookie_id), *await marked(store)]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)


async def _versions(store: MetadataStore, ledgers: Iterable[int]) -> list[int]:
    return [(await LedgerStore(store).read(ledger_id))[1] for ledger_id in ledgers]


PARTS: dict[str, Callable[[Matrix, Ask], None]] = {
    "conversations": conversations,
    "brokers": brokers,
    "move": move,
    "shell": shell,
    "auto_recovery": auto_recovery,
    "pulsar": pulsar,
    "distributedlog": distributedlog,
    "read_only": read_only,
}
