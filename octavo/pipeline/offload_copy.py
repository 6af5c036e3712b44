"""Copy a ledger into an object and read it back: the Spark task of an offload.

A copy is whole when the object, opened again, has the entries and checksum of the ledger, and is
synced to disk. After a kill, the intent tells the next run where to look. Changes no metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Container
from dataclasses import replace
from typing import Any, NamedTuple

from octavo.ledger.encryption import opening_of
from octavo.ledger.errors import LedgerError, OffloadDamaged, OffloadUnavailable
from octavo.ledger.offload.format import BY_ENTRY, About, Checksum, ObjectWriter, Written
from octavo.ledger.offload.object_store import file_system, joined
from octavo.ledger.offload.offloaded import open_offloaded
from octavo.metadata.offloads import OFFLOADED
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.metadata.topics import OffloadRecord
from octavo.pipeline.offload_rules import pause_s
from octavo.protocol.append_time import Appended, shown
from octavo.protocol.batch import read_header
from octavo.protocol.codes import OctavoError
from octavo.security.keys.wrapped import ENCRYPTION_KEY
from octavo.spark.cluster import Cluster


class CopyTask(NamedTuple):
    about: About
    folder: str
    stem: str
    records: dict[str, bytes]
    service: str
    bytes_per_s: float | None
    appended: Appended | None = None


class Copied(NamedTuple):
    task: CopyTask
    url: str
    written: Written | None
    failed: str | None = None
    encryption: str = ""


def stem_of(ledger_id: int, uuid: str) -> str:
    return f"ledger-{ledger_id}-{uuid}"


def copy_in_task(task: CopyTask) -> Copied:
    return asyncio.run(copy(task))


async def copy(task: CopyTask) -> Copied:
    """Return errors of this ledger, do not raise them: other ledgers continue."""
    # Each attempt has its own name: an attempt that Spark gave up may still be writing.
    url = joined(task.folder, f"{task.stem}-{secrets.token_hex(4)}.parquet")
    try:
        written, encryption = await _copy(task, url)
    except (OctavoError, OSError) as error:
        with contextlib.suppress(OSError, OctavoError):
            await asyncio.to_thread(remove, url)
        return Copied(task, url, None, str(error) or type(error).__name__)
    return Copied(task, url, written, encryption=encryption)


async def _copy(task: CopyTask, url: str) -> tuple[Written, str]:
    cluster = Cluster(SnapshotStore(task.records, task.service))
    await cluster.start()
    try:
        written, encryption = await _write(cluster, task, url)
    finally:
        await cluster.close()
    await verify(task.about, url, written)
    return written, encryption


async def _write(cluster: Cluster, task: CopyTask, url: str) -> tuple[Written, str]:
    """Write the object. Encrypted entries are stored as they are: engines could not read them. They
    are opened only to fill the columns with offsets and times.
    """
    reader = await cluster.ledgers.open(task.about.ledger_id, as_stored=True)
    opening = opening_of(reader.metadata, cluster.ledgers.keys)
    if not reader.is_closed or reader.last_add_confirmed + 1 != task.about.entries:
        raise LedgerError(f"ledger {task.about.ledger_id} has changed since it was planned")
    files, path = file_system(url)
    now_s = asyncio.get_running_loop().time
    started_s, done = now_s(), 0
    about = task.about if opening is None else replace(task.about, format=BY_ENTRY)
    with writing(url, files, path) as file, ObjectWriter(file, about) as writer:
        async with contextlib.aclosing(reader.batches(0, task.about.entries - 1)) as batches:
            async for batch in batches:
                plain = batch if opening is None else await opening.opened(batch)
                headers = [shown(read_header(one.payload), task.appended) for one in plain]
                await asyncio.to_thread(writer.add, batch, headers)
                done += sum(len(entry.payload) for entry in batch)
                await asyncio.sleep(pause_s(done, now_s() - started_s, task.bytes_per_s))
        written = await asyncio.to_thread(writer.close)
    return written, reader.metadata.custom.get(ENCRYPTION_KEY, b"").decode()


async def verify(about: About, url: str, written: Written) -> None:
    """Read the object as readers will, and compare. Raises `OffloadDamaged`."""
    offload = OffloadRecord(
        about.uuid, OFFLOADED, url, 0, written.entries, written.bytes, written.crc,
        written.footer_crc,
    )  # fmt: skip
    found = Checksum()
    reader = await open_offloaded(about.ledger_id, offload)
    try:
        async for entry in reader.entries(0, reader.last_add_confirmed):
            found.add(entry)
    finally:
        await reader.close()
    if (found.entries, found.crc) != (written.entries, written.crc):
        raise OffloadDamaged(
            f"{url}: read back {found.entries} entries with checksum {found.crc:#010x}, but "
            f"wrote {written.entries} with {written.crc:#010x}"
        )


@contextlib.contextmanager
def writing(url: str, files: Any, path: str) -> Any:
    try:
        files.create_dir(os.path.dirname(path), recursive=True)
        with files.open_output_stream(path) as file:
            yield file
        if files.type_name == "local":
            _sync(path)
            _sync(os.path.dirname(path))
    except OSError as error:
        raise OffloadUnavailable(f"{url} cannot be written: {error}") from error


def _sync(path: str) -> None:
    """Sync the object: bookies delete their copies for it, so it must survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(url: str) -> None:
    files, path = file_system(url)
    with contextlib.suppress(FileNotFoundError):
        files.delete_file(path)


def remove_all(folder: str, stems: Container[str]) -> set[str]:
    from pyarrow import fs

    files, path = file_system(folder)
    found = files.get_file_info(fs.FileSelector(path, allow_not_found=True))
    mine = [(one.path, stem) for one in found if (stem := _stem_in(one.base_name)) in stems]
    for path, _ in mine:
        with contextlib.suppress(FileNotFoundError):
            files.delete_file(path)
    return {stem for _, stem in mine}


def _stem_in(name: str) -> str:
    return name.rpartition("-")[0]


def check_writable(folder: str) -> None:
    url = joined(folder, f"octavo-{secrets.token_hex(8)}.probe")
    files, path = file_system(url)
    with writing(url, files, path) as file:
        file.write(b"may be deleted")
    remove(url)
