"""Limbo: a bookie that lost data never answers "absent" for its old ledgers again.

It cannot tell an entry that it never had from a lost one, nor an open ledger from a fenced one.
`unsure_through` is the highest ledger id that existed when the loss was found. For a ledger up to
that id (BookKeeper BP-46):

- What the bookie holds is served; every denial becomes `UnknownState`.
- Ordinary adds are refused, because the fence may be lost; the writer then changes its ensemble.
  Recovery adds are stored, and fences are made.

A ledger leaves limbo when re-replication vouches that all its entries are here again; when all have
left, the limbo is *over*. The copy with the highest bound counts, so a crash never takes a bookie
out of limbo. Spec: docs/formats/limbo.md.

`LimboFile` changes the file first, then what is in memory: a crash never makes a bookie more
certain than it may be.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgpack
from crc32c import crc32c

from octavo.bookie.disk.files import Blocking, Disk, SyncFailed, replace_file
from octavo.bookie.disk.finishing import finished
from octavo.protocol.codes import OctavoError, Scope

NAME = "limbo"
MAGIC = b"OctvLimb"
VERSION = 1
_HEAD = struct.Struct(">8sII")
_CRC = struct.Struct(">I")
_NOWHERE = -1


class LimboDamaged(OctavoError):
    """This bookie may not answer for any ledger."""

    name = "limbo-damaged"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True)
class LimboRecord:
    unsure_through: int
    """The highest ledger id that existed when data was lost."""
    since_ms: int
    why: str
    incarnation: str
    """The life of the bookie that began after the loss, or in which data was lost."""
    whole: tuple[int, ...] = ()
    """Ledgers whose entries are all here again, ascending."""
    over: bool = False
    """All ledgers that name this bookie are complete here again."""


class Limbo:
    def __init__(self, record: LimboRecord | None = None) -> None:
        self.take(record)

    def take(self, record: LimboRecord | None) -> None:
        """Use the record that was read; None when there is no file."""
        self.record = record
        self.unsure_through = record.unsure_through if record is not None else _NOWHERE
        self._whole = frozenset(record.whole) if record is not None else frozenset()
        self._over = record is not None and record.over

    def covers(self, ledger_id: int) -> bool:
        """Whether this bookie may have lost data of the ledger."""
        return (
            0 <= ledger_id <= self.unsure_through
            and not self._over
            and ledger_id not in self._whole
        )

    def may_have_fenced(self, ledger_id: int, *, known: bool) -> bool:
        """Whether a fence may be lost; `known`: the ledger has a state here."""
        if self._over:
            return not known and 0 <= ledger_id <= self.unsure_through
        return self.covers(ledger_id)

    @property
    def unknown_through(self) -> int:
        """Return the last ledger of which data may be missing here; −1 for none."""
        return _NOWHERE if self._over else self.unsure_through

    @property
    def is_over(self) -> bool:
        return self.record is None or self._over


def deepened(
    record: LimboRecord | None, unsure_through: int, why: str, now_ms: int, incarnation: str
) -> LimboRecord:
    """Return the record after another loss: ledgers that had left limbo are in it again."""
    if record is None:
        return LimboRecord(unsure_through, now_ms, why, incarnation)
    bound = max(record.unsure_through, unsure_through)
    return LimboRecord(bound, now_ms, why, incarnation)


def vouched(record: LimboRecord, ledger_ids: Iterable[int]) -> LimboRecord:
    added = {found for found in ledger_ids if 0 <= found <= record.unsure_through}
    return replace(record, whole=tuple(sorted(added.union(record.whole))))


def encode_limbo(record: LimboRecord) -> bytes:
    fields = {
        "unsure_through": record.unsure_through,
        "since_ms": record.since_ms,
        "why": record.why,
        "incarnation": record.incarnation,
        "whole": list(record.whole),
    }
    if record.over:  # an older release ignores this key and stays in limbo, which is safe
        fields["over"] = True
    body = msgpack.packb(fields)
    front = _HEAD.pack(MAGIC, VERSION, len(body)) + body
    return front + _CRC.pack(crc32c(front))


def decode_limbo(data: bytes) -> LimboRecord:
    """Decode the file. Raises `LimboDamaged`, also for an unknown version."""
    if len(data) < _HEAD.size + _CRC.size:
        raise LimboDamaged(f"{len(data)} bytes are too few")
    magic, version, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    if magic != MAGIC or len(data) != end + _CRC.size:
        raise LimboDamaged("it does not begin or end as it should")
    if crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise LimboDamaged("its checksum does not match")
    if version != VERSION:
        raise LimboDamaged(f"its version is {version}; this release reads version {VERSION}")
    try:
        body = msgpack.unpackb(data[_HEAD.size : end])
        record = LimboRecord(
            body["unsure_through"],
            body["since_ms"],
            body["why"],
            body["incarnation"],
            tuple(body["whole"]),
            body.get("over") is True,
        )
    except Exception as error:  # msgpack raises a wide, undocumented set for bad input
        raise LimboDamaged(f"its body is not of version {VERSION}: {error!r:.100}") from error
    return record


def read_limbo(disk: Disk, directories: Sequence[str]) -> LimboRecord | None:
    """Read all folders; None without a file; blocking.

    Raises `LimboDamaged` when there are copies and none can be read.
    """
    found: list[LimboRecord] = []
    damaged: list[str] = []
    for directory in directories:
        path = f"{directory}/{NAME}"
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            found.append(decode_limbo(file.pread(file.size(), 0)))
        except LimboDamaged as error:
            damaged.append(f"{path}: {error}")
        finally:
            file.close()
    if not found:
        if damaged:
            raise LimboDamaged(
                f"{'; '.join(damaged)}. The file says for which ledgers this bookie must not "
                "answer 'no such entry'. Copy it from another ledger folder of this bookie, or "
                "start once with --accept-loss: then the limbo covers every existing ledger"
            )
        return None
    highest = max(found, key=lambda record: record.unsure_through)
    same = [record for record in found if record.unsure_through == highest.unsure_through]
    whole = set.intersection(*(set(record.whole) for record in same))
    return replace(highest, whole=tuple(sorted(whole)), over=all(record.over for record in same))


def write_limbo(disk: Disk, directories: Sequence[str], record: LimboRecord) -> None:
    """Write every folder, durably; blocking."""
    data = encode_limbo(record)
    for directory in directories:
        replace_file(disk, f"{directory}/{NAME}", data)


def remove_limbo(disk: Disk, directories: Sequence[str]) -> None:
    """Leave limbo, durably; blocking."""
    for directory in directories:
        path = f"{directory}/{NAME}"
        if disk.exists(path):
            disk.unlink(path)
            disk.sync_directory(directory)


class LimboFile:
    """Changes the file first, then memory: a crash makes no bookie too certain."""

    def __init__(
        self,
        limbo: Limbo,
        disk: Disk,
        directories: Sequence[str],
        blocking: Blocking,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._limbo = limbo
        self._disk = disk
        self._directories = directories
        self._blocking = blocking
        self._on_fatal = on_fatal
        self._lock = asyncio.Lock()

    async def vouch(self, ledger_ids: Iterable[int]) -> None:
        """Take these ledgers out of limbo, durably.

        The caller has found them closed, copied back what this bookie must hold, and fenced them
        here.
        """
        async with self._lock:
            if self._limbo.record is not None:
                await finished(self._replace(vouched(self._limbo.record, ledger_ids)))

    async def end(self) -> None:
        """Leave limbo, durably: all ledgers that name this bookie are complete here."""
        async with self._lock:
            if self._limbo.record is not None:
                await finished(self._replace(replace(self._limbo.record, over=True)))

    async def _replace(self, record: LimboRecord) -> None:
        try:
            await self._blocking(write_limbo, self._disk, self._directories, record)
        except SyncFailed as error:
            self._on_fatal(error)
            raise
        self._limbo.take(record)
