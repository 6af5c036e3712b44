"""The same faults on real files of one of three bookies, with RocksDB and a ledger client. The
folder of `b1` is kept as a `kill -9` leaves it. For each block: put the folder back, hurt the
block, start the bookie, ask it for all its entries, and read everything through a client.
Besides sweep.py's rules, no client may miss what the other bookies hold."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from octavo.bookie.disk.files import RealDisk
from octavo.bookie.entrylog.format import log_id_of
from octavo.bookie.journal.format import file_id_of
from octavo.bookie.journal.mark import read_mark
from octavo.bookie.node import BookieNode
from octavo.metadata.bookies import BookieRegistry
from octavo.protocol.codes import Code, OctavoError
from octavo.protocol.entry import master_key
from tests.single_fault.faults import BLOCK, Fault, is_torn_tail
from tests.single_fault.sweep import WrongAnswer
from tests.support.cluster import Cluster, add_many, payload_of, running_cluster
from tests.support.engine_lab.images import Image
from tests.support.raw_bookie import RawClient, add_of

KINDS = ("flip", "zero", "truncate")
_SIZE = 300
_START_S_MAX = 30.0
_ERRORS = (Code.IO, Code.UNKNOWN_STATE, Code.TOO_MANY_REQUESTS)
_LOG_BYTES_MAX = 12 * 1024


def _settings(folder: Path) -> dict[str, Any]:
    """Return the settings of `b1`: two ledger folders, and so small files that there are
    several of each kind."""
    return {
        "ledger_directories": (f"{folder}/b1/ledgers-1", f"{folder}/b1/ledgers-2"),
        "journal_preallocate_bytes": 8 * 1024,
        "journal_file_bytes_max": 24 * 1024,
        "entry_log_bytes_max": _LOG_BYTES_MAX,
    }


class ThreeBookies:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = cluster.folder / "b1"
        self.kept = folder
        self.settings = _settings(cluster.folder)
        self.ledgers: dict[int, int] = {}
        self.key = b""
        self.open_ledger = self.fenced_ledger = self.deleted_ledger = -1
        self.held: dict[tuple[int, int], bytes] = {}
        """The content of `b1`: (ledger, entry) → its bytes."""
        self.image = Image({}, {}, {})
        self.cookie = b""
        self.logs: list[Path] = []

    # Writing

    async def write(self) -> None:
        client = await self.cluster.client()
        self.key = master_key(client.cluster_password)
        closed = await client.create(write_quorum=2, ack_quorum=2)
        fenced = await client.create(ack_quorum=3)
        deleted = await client.create(ack_quorum=3)
        for writer in (closed, fenced, deleted):
            await add_many(writer, 24, _SIZE)
        await self._node.storage.checkpoint()
        await add_many(closed, 12, _SIZE)
        await self._node.storage.control.fence(fenced.ledger_id, self.key)
        await self._node.storage.delete_ledger(deleted.ledger_id)
        # flushes: a log is sealed, and everything is in the index
        await self.cluster.stop_bookie("b1")
        await self.cluster.start_bookie("b1", **self.settings)
        followed = await client.create(ack_quorum=3)
        await add_many(followed, 12, _SIZE)
        await self._node.storage.checkpoint()
        await add_many(followed, 12, _SIZE)
        await self._node.storage.control.set_explicit_lac(followed.ledger_id, self.key, 23)
        for name in ("b2", "b3"):  # their writer would tell them too, at an unknown time
            for open_ledger in (fenced, followed):
                storage = self.cluster.nodes[name].storage
                await storage.control.set_explicit_lac(open_ledger.ledger_id, self.key, 23)
        await closed.close()
        self.ledgers = {closed.ledger_id: 35, fenced.ledger_id: 23, followed.ledger_id: 23}
        self.open_ledger, self.fenced_ledger = followed.ledger_id, fenced.ledger_id
        self.deleted_ledger = deleted.ledger_id
        await self._note_what_it_holds()
        shutil.copytree(self.folder, self.kept)
        self.image = image_of(self.kept)
        self.logs = self._vouched_logs()
        self.cookie = await self._recorded_cookie()
        await self.cluster.stop_bookie("b1")

    @property
    def _node(self) -> BookieNode:
        return self.cluster.nodes["b1"]

    async def _note_what_it_holds(self) -> None:
        raw = await RawClient.connect(self._node)
        for ledger_id, last in self.ledgers.items():
            for entry_id in range(last + 1):
                found = await raw.read(ledger_id, entry_id)
                if found is not Code.NO_ENTRY:
                    assert payload_of(entry_id, _SIZE) in found
                    self.held[ledger_id, entry_id] = found
        raw.close()

    async def _recorded_cookie(self) -> bytes:
        cookie, _ = await BookieRegistry(self.cluster.store).read_cookie("b1")
        return repr(cookie).encode()

    # One fault

    async def try_one(self, fault: Fault) -> str:
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder)
        self._hurt(fault)
        try:
            async with asyncio.timeout(_START_S_MAX):
                await self.cluster.start_bookie("b1", **self.settings)
        except OctavoError as error:
            end = f"refused: {type(error).__name__}"
        else:
            end = await self._ask_everything(fault)
        await self._read_through_a_client()
        if "b1" in self.cluster.nodes:
            with contextlib.suppress(OctavoError):
                await self.cluster.stop_bookie("b1")
        gone = [log for log in self.logs if not log.exists()]
        if gone:
            raise WrongAnswer(f"deleted {gone}")
        if await self._recorded_cookie() != self.cookie:
            raise WrongAnswer("has another identity in metadata")
        return end

    def _hurt(self, fault: Fault) -> None:
        path = self.folder / fault.path.removeprefix("/")
        with open(path, "r+b") as file:
            if not fault.data:
                file.truncate(fault.start)
                return
            file.seek(fault.start)
            file.write(fault.data)

    def _vouched_logs(self) -> list[Path]:
        """Return the entry logs that the mark covers: none of them may go."""
        mark = read_mark(RealDisk(), self.settings["ledger_directories"])
        assert mark is not None
        found = [(path, log_id_of(path.name)) for path in self.folder.rglob("*.log")]
        return [path for path, log_id in found if log_id is not None and log_id <= mark.log_id]

    async def _ask_everything(self, fault: Fault) -> str:
        raw = await RawClient.connect(self._node)
        ends: Counter[str] = Counter()
        try:
            for (ledger_id, entry_id), wanted in self.held.items():
                found = await raw.read(ledger_id, entry_id)
                if isinstance(found, bytes) and found != wanted:
                    raise WrongAnswer(f"other bytes of {ledger_id}:{entry_id}")
                ends[self._judge(found, f"entry {ledger_id}:{entry_id}")] += 1
            found = await raw.read(self.deleted_ledger, 0)
            if isinstance(found, bytes):
                ends["lost"] += 1
            for ledger_id in (self.fenced_ledger, self.deleted_ledger):
                if await raw.add(add_of(ledger_id, 90, key=self.key)) is Code.OK:
                    ends["lost"] += 1
        except (EOFError, ConnectionError) as error:
            if not self._node.failed.done():
                raise WrongAnswer("hung up, and lives on") from error
            return "stopped by itself"
        finally:
            raw.close()
        if ends["lost"]:
            if not self._looks_torn(fault):
                raise WrongAnswer("an acked entry is denied, or a fence or deletion is forgotten")
            return "cut as a torn tail"
        return "explicit error" if ends["error"] else "all there"

    @staticmethod
    def _judge(found: object, what: str) -> str:
        if isinstance(found, bytes):
            return "right"
        if found in _ERRORS:
            return "error"
        if found in (Code.NO_ENTRY, Code.NO_LEDGER):
            return "lost"
        raise WrongAnswer(f"{what}: {found!r}")

    def _looks_torn(self, fault: Fault) -> bool:
        return file_id_of(fault.path.rpartition("/")[2]) is not None and is_torn_tail(
            fault, self.image
        )

    async def _read_through_a_client(self) -> None:
        client = await self.cluster.client()
        try:
            if sorted(await client.list()) != sorted([*self.ledgers, self.deleted_ledger]):
                raise WrongAnswer("a ledger is gone from metadata")
            for ledger_id, last in self.ledgers.items():
                reader = await client.open(ledger_id)
                until = last if reader.is_closed else min(last, reader.last_add_confirmed)
                for entry in await reader.read(0, until):
                    if entry.payload != payload_of(entry.entry_id, _SIZE):
                        raise WrongAnswer(f"a client read other bytes: {ledger_id}")
                if until < last - 1:
                    raise WrongAnswer(f"a client sees {ledger_id} end at {until}, not {last}")
                await reader.close()
        finally:
            await self.cluster.drop_client(client)


def faults_of(image: Image, stride: int = 1) -> Iterator[Fault]:
    """Yield faults: each block of each file flipped, zeroed and cut off; every `stride`-th of
    them."""
    number = 0
    for path, (data, size) in sorted(image.files.items()):
        for start in range(0, size, BLOCK):
            end = min(start + BLOCK, size)
            old = data[start:end]
            at = number * 37 % len(old)
            flipped = bytearray(old)
            flipped[at] ^= 1 << number % 8
            new = {"flip": bytes(flipped), "zero": bytes(len(old)), "truncate": b""}
            for kind in KINDS:
                number += 1
                if number % stride == 0 and new[kind] != old:
                    last = size if kind == "truncate" else end
                    yield Fault(kind, path, start, last, new[kind])


def kind_of(path: str) -> str:
    folder, _, name = path.rpartition("/")
    kind = re.sub(r"^[0-9a-f]{16}\.|[-.]?[0-9]+|^\.", "", name)
    return f"index {kind.lstrip('.')}" if folder.endswith("index") else kind


def image_of(folder: Path) -> Image:
    files: dict[str, tuple[bytes, int]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            files["/" + str(path.relative_to(folder))] = (data, len(data))
    return Image(files, {}, {})


@contextlib.asynccontextmanager
async def three_bookies(folder: Path) -> AsyncIterator[ThreeBookies]:
    os.makedirs(folder, exist_ok=True)
    async with running_cluster(folder / "cluster", 0) as cluster:
        world = ThreeBookies(cluster, folder / "kept")
        await cluster.start_bookie("b1", **world.settings)
        for name in ("b2", "b3"):
            await cluster.start_bookie(name)
        await world.write()
        yield world


async def sweep_cluster(
    folder: Path, stride: int = 1, part: int = 0, parts: int = 1, *, only: str = ""
) -> Counter[tuple[str, str]]:
    """Return (kind of file, ending) → count. Uses the `part`-th share of every `stride`-th
    fault, in files whose path contains `only`."""
    ends: Counter[tuple[str, str]] = Counter()
    async with three_bookies(folder) as world:
        for number, fault in enumerate(faults_of(world.image, stride)):
            if number % parts == part and only in fault.path:
                try:
                    end = await world.try_one(fault)
                except Exception as error:
                    raise WrongAnswer(f"{fault}: {type(error).__name__}: {error}") from error
                ends[kind_of(fault.path), end] += 1
    return ends


def sweep_part(parts: int, part: int) -> Counter[tuple[str, str]]:
    """Run `sweep_cluster` in a separate process; a pool's function must not be in `__main__`."""
    with tempfile.TemporaryDirectory(prefix="octavo-faults-") as folder:
        return asyncio.run(sweep_cluster(Path(folder), part=part, parts=parts))
