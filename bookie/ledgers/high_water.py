"""Recognise a metadata store that is older than what this bookie has seen: a restored copy.

Such a store would give ids of existing ledgers to new ledgers: acked messages would be lost
silently. So the same mark is in the metadata (metadata/high_water.py) and in every ledger folder.
The bookie raises it, first in the metadata: at each start and stop, when ledgers begin here, and at
intervals. A store that is behind the highest file is refused. Spec: docs/formats/high_water.md.

A copy of the store that was made after the last raise is not recognised as older; but the mark is
raised within seconds after a ledger has begun here. The highest readable file counts. Without any
file the store cannot be checked. Spec: docs/formats/high_water.md.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgpack
import structlog
from crc32c import crc32c

from octavo.bookie.disk.files import Disk, DiskError, SyncFailed, replace_file
from octavo.bookie.disk.finishing import finished
from octavo.metadata.high_water import HighWater, HighWaterStore
from octavo.metadata.ledgers import LedgerStore
from octavo.protocol.codes import OctavoError, Scope

NAME = "high-water"
MAGIC = b"OctvHigh"
VERSION = 1
_HEAD = struct.Struct(">8sII")
_CRC = struct.Struct(">I")
_BYTES_MAX = 4096

_log = structlog.get_logger()


class MetadataOlder(OctavoError):
    """The store is an older copy of the store that this bookie has worked with."""

    name = "metadata-older"
    scope = Scope.PROCESS


class HighWaterDamaged(OctavoError):
    name = "high-water-damaged"
    scope = Scope.PROCESS


def encode_high_water(mark: HighWater) -> bytes:
    body = msgpack.packb({"seen": mark.seen, "stretch": mark.stretch})
    front = _HEAD.pack(MAGIC, VERSION, len(body)) + body
    return front + _CRC.pack(crc32c(front))


def decode_high_water(data: bytes) -> HighWater:
    """Decode the file. Raises `HighWaterDamaged`, also for an unknown version."""
    if len(data) < _HEAD.size + _CRC.size:
        raise HighWaterDamaged(f"{len(data)} bytes are too few")
    magic, version, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    if magic != MAGIC or len(data) != end + _CRC.size:
        raise HighWaterDamaged("it does not begin or end as it should")
    if crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise HighWaterDamaged("its checksum does not match")
    if version != VERSION:
        raise HighWaterDamaged(f"its version is {version}; this release reads version {VERSION}")
    try:
        body = msgpack.unpackb(data[_HEAD.size : end])
        seen, stretch = body["seen"], body["stretch"]
    except Exception as error:  # msgpack raises a wide, undocumented set for bad input
        raise HighWaterDamaged(f"its body is not of version {VERSION}: {error!r:.100}") from error
    if type(seen) is not int or type(stretch) is not int or seen < 0 or stretch < 0:
        raise HighWaterDamaged("its numbers are missing or negative")
    return HighWater(seen, stretch)


def read_high_water(disk: Disk, directories: Sequence[str]) -> HighWater | None:
    """Return the highest mark of the folders, if any; blocking."""
    found: list[HighWater] = []
    for directory in directories:
        path = f"{directory}/{NAME}"
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            found.append(decode_high_water(file.pread(_BYTES_MAX, 0)))
        except (HighWaterDamaged, DiskError) as error:
            _log.warning("high_water_unreadable", path=path, reason=str(error))
        finally:
            file.close()
    if not found:
        return None
    return HighWater(max(one.seen for one in found), max(one.stretch for one in found))


def write_high_water(disk: Disk, directories: Sequence[str], mark: HighWater) -> None:
    """Write the mark into all folders; durable, blocking."""
    data = encode_high_water(mark)
    for directory in directories:
        replace_file(disk, f"{directory}/{NAME}", data)


def is_older(recorded: HighWater | None, held: HighWater | None) -> bool:
    return held is not None and (recorded is None or recorded.seen < held.seen)


def raised(recorded: HighWater | None, held: HighWater | None, stretch: int) -> HighWater:
    """Return a mark above both; new ledgers get ids from `stretch` now."""
    marks = [mark for mark in (recorded, held) if mark is not None]
    return HighWater(
        max((mark.seen for mark in marks), default=0) + 1,
        max(stretch, *(mark.stretch for mark in marks)) if marks else stretch,
    )


class HighWaterMark:
    """Raises the high-water mark; its calls must not overlap."""

    def __init__(
        self,
        bookie_id: str,
        records: HighWaterStore,
        ledgers: LedgerStore,
        disk: Disk,
        directories: Sequence[str],
        blocking: Callable[..., Awaitable[Any]],
    ) -> None:
        self._bookie_id = bookie_id
        self._records = records
        self._ledgers = ledgers
        self._disk = disk
        self._directories = directories
        self._blocking = blocking
        self._held: HighWater | None = None

    async def start(self, *, accept_older: bool) -> None:
        """Compare the store with the files, and raise the mark.

        With `accept_older`, new ledgers get ids above all that were ever given. Raises
        `MetadataOlder`, `MetadataUnavailable`.
        """
        self._held = await self._blocking(read_high_water, self._disk, self._directories)
        recorded, _ = await self._records.read(self._bookie_id)
        if is_older(recorded, self._held) and accept_older:
            assert self._held is not None
            stretch = await self._ledgers.draw_beyond(self._held.stretch)
            _log.error(
                "older_metadata_accepted",
                bookie=self._bookie_id,
                seen=self._held.seen,
                recorded=0 if recorded is None else recorded.seen,
                ids_from=stretch << 32,
            )
        await self.rise(accept_older=accept_older)

    async def rise(self, *, accept_older: bool = False) -> None:
        """Raise the mark in the store, then on the disks.

        Raises `MetadataOlder`, and the store's errors: try again later.
        """
        recorded, version = await self._records.read(self._bookie_id)
        if is_older(recorded, self._held) and not accept_older:
            raise self._older(recorded)
        mark = raised(recorded, self._held, await self._ledgers.stretch())
        await self._records.write(self._bookie_id, mark, version)
        await finished(self._write(mark))

    async def _write(self, mark: HighWater) -> None:
        try:
            await self._blocking(write_high_water, self._disk, self._directories, mark)
        except SyncFailed:
            raise
        except DiskError as error:  # a full disk, for example: the older mark is still valid
            _log.warning("high_water_not_written", bookie=self._bookie_id, reason=str(error))
            return
        self._held = mark

    def _older(self, recorded: HighWater | None) -> MetadataOlder:
        assert self._held is not None
        says = "nothing" if recorded is None else f"state {recorded.seen}"
        return MetadataOlder(
            f"the metadata store {self._records.url} is an older copy: bookie {self._bookie_id} "
            f"has worked with its state {self._held.seen}, and the store says {says} about this "
            "bookie. Ledgers created since that copy have no record in it: their acked entries "
            "could not be read, and garbage collection would remove them. Stop all brokers "
            "and bookies and restore the newest metadata. If there is none, copy the folders of "
            "the bookies aside and start each bookie once with --accept-older-metadata: new "
            "ledgers then get ids that were never used (docs/operations.md, When metadata is older)"
        )
