"""Subjects and their schemas: registered by compare-and-set, in memory where messages are checked.

A subject is used by whoever owns a partition of a topic that checks its messages: its record is
then kept under a watch (watched_record.py), and its schemas are compiled once. So publishing goes
on while the metadata store is away. A version never changes, and none goes but with its subject.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, NamedTuple

from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.broker.errors import (
    IncompatibleSchema,
    InvalidSchema,
    SchemaMismatch,
    SchemaNotFound,
    SettingsConflict,
)
from octavo.broker.schemas.compatibility import MODES, problems_of
from octavo.broker.schemas.kinds import Schema, id_of, parsed
from octavo.metadata.one_record import ABSENT
from octavo.metadata.schemas import SchemaStore, SchemaVersion, SubjectRecord
from octavo.metadata.store import RecordExists, RecordNotFound, VersionConflict, Watch
from octavo.protocol.records import Record

SCHEMA_HEADER = "octavo-schema"
"""Of a message: the id, or the number, of the version that it is of. Without it: the newest."""
VERSIONS_MAX = 1_000
RECORD_CHARS_MAX = 400_000
"""Texts of all versions: the metadata store takes records of 1 MB."""
SUBJECTS_KEPT = 10_000
"""In memory; further ones are read each time."""
_CHANGES_TRIED_MAX = 8
SubjectName = tuple[str, str]


class Registered(NamedTuple):
    """A version, and whether this call has made it."""

    version: SchemaVersion
    new: bool


class _Subject:
    """As known here, with its schemas compiled when they are needed."""

    def __init__(self, record: SubjectRecord) -> None:
        self.record = record
        self._compiled: dict[int, Schema] = {}

    def schema(self, version: SchemaVersion) -> Schema:
        found = self._compiled.get(version.number)
        if found is None:
            found = self._compiled[version.number] = parsed(version.type, version.text)
        return found


class SchemaRegistry:
    """All subjects of the cluster."""

    def __init__(
        self,
        records: SchemaStore,
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._records = records
        self._clock = clock
        self._spawn = spawn
        self._known: dict[SubjectName, tuple[WatchedRecord[_Subject], Watch]] = {}

    def close(self) -> None:
        """Watch no more."""
        for _, watch in tuple(self._known.values()):
            watch.cancel()
        self._known.clear()

    async def subjects(self, namespace: str) -> list[str]:
        """Of a namespace, sorted."""
        return await self._records.subjects(namespace)

    async def subject(self, name: SubjectName) -> SubjectRecord:
        """As it stands in the store. Raises `SchemaNotFound`."""
        record, version = await self._records.read(*name)
        if version == ABSENT:
            raise _no_subject(name)
        return record

    async def version(self, name: SubjectName, which: str) -> SchemaVersion:
        """By its number, its id, or `latest`. Raises `SchemaNotFound`."""
        return _find(name, await self.subject(name), which)

    async def check(self, name: SubjectName, kind: str, given: Any) -> tuple[str, list[str]]:
        """The subject's compatibility, and why this schema may not be its next version.

        Raises `InvalidSchema`.
        """
        record, _ = await self._records.read(*name)
        return record.compatibility, _problems(record, kind, parsed(kind, given))

    async def register(self, name: SubjectName, kind: str, given: Any) -> Registered:
        """Make it the next version, unless it is there already.

        Raises `InvalidSchema`, `IncompatibleSchema`, `SettingsConflict`.
        """
        schema = parsed(kind, given)
        made_of = id_of(kind, schema.text)
        for _ in range(_CHANGES_TRIED_MAX):
            record, version = await self._records.read(*name)
            for one in record.versions:
                if one.id == made_of:
                    return Registered(one, new=False)
            if problems := _problems(record, kind, schema):
                raise IncompatibleSchema(
                    f"the schema may not follow those of {'/'.join(name)} "
                    f"({record.compatibility}): {'; '.join(problems[:5])}",
                    problems,
                )
            chars = sum(len(one.text) for one in record.versions) + len(schema.text)
            if len(record.versions) >= VERSIONS_MAX or chars > RECORD_CHARS_MAX:
                raise IncompatibleSchema(
                    f"subject {'/'.join(name)} has {len(record.versions)} versions with "
                    f"{chars} characters together; the most are {VERSIONS_MAX}, and "
                    f"{RECORD_CHARS_MAX}: use another subject",
                    [],
                )
            number = record.versions[-1].number + 1 if record.versions else 1
            made = SchemaVersion(number, made_of, kind, schema.text, self._clock())
            changed = replace(record, versions=(*record.versions, made))
            with contextlib.suppress(RecordExists, VersionConflict, RecordNotFound):
                await self._records.write(*name, changed, version)
                return Registered(made, new=True)
        raise SettingsConflict(f"subject {'/'.join(name)} is being changed by others; try again")

    async def set_compatibility(self, name: SubjectName, mode: str) -> SubjectRecord:
        """From now on; made, without versions, if it is not there. Raises `InvalidSchema`,
        `SettingsConflict`."""
        if mode not in MODES:
            raise InvalidSchema(
                f"compatibility is {mode[:40]!r}; it must be one of {', '.join(MODES)}"
            )
        for _ in range(_CHANGES_TRIED_MAX):
            record, version = await self._records.read(*name)
            changed = replace(record, compatibility=mode)
            with contextlib.suppress(RecordExists, VersionConflict, RecordNotFound):
                await self._records.write(*name, changed, version)
                return changed
        raise SettingsConflict(f"subject {'/'.join(name)} is being changed by others; try again")

    async def delete(self, name: SubjectName) -> None:
        """With all its versions. Raises `SchemaNotFound`, `SettingsConflict`."""
        _, version = await self._records.read(*name)
        if version == ABSENT:
            raise _no_subject(name)
        try:
            await self._records.delete(*name, version)
        except VersionConflict:
            raise SettingsConflict(
                f"subject {'/'.join(name)} is being changed by others; try again"
            ) from None
        except RecordNotFound:
            raise _no_subject(name) from None

    # ---- messages

    async def checker(self, name: SubjectName) -> Callable[[Record], str | None]:
        """Tells why a message does not fit its subject; None when it does.

        Raises `SchemaMismatch` when the subject has no version that anything could fit, and
        `MetadataUnavailable` when it was never read.
        """
        known = self._known.get(name)
        if known is None:
            watched = WatchedRecord(lambda: self._read(name), self._spawn)
            if len(self._known) >= SUBJECTS_KEPT:
                return self._fits(name, await watched.newest())
            watch = self._records.watch(*name, watched.alarm)
            known = self._known[name] = (watched, watch)
        fresh = known[0].fresh
        return self._fits(name, fresh if fresh is not None else await known[0].value())

    async def _read(self, name: SubjectName) -> _Subject:
        return _Subject((await self._records.read(*name))[0])

    def _fits(self, name: SubjectName, subject: _Subject) -> Callable[[Record], str | None]:
        record = subject.record
        if not record.versions:
            raise SchemaMismatch(
                f"the topic checks messages by schema subject {'/'.join(name)}, which has no "
                "version: register one, or set `schema` of the topic to null"
            )

        def misfit(message: Record) -> str | None:
            if message.value is None:
                return None  # a tombstone takes its key away, and is of no schema
            which = next((v for n, v in message.headers or () if n == SCHEMA_HEADER), None)
            try:
                version = _find(name, record, "latest" if which is None else which.decode())
            except (SchemaNotFound, UnicodeDecodeError) as error:
                return f"its header {SCHEMA_HEADER}: {error}"
            try:
                why = subject.schema(version).misfit(message.value)
            except InvalidSchema as error:
                return str(error)
            return why and f"it does not fit {'/'.join(name)} version {version.number}: {why}"

        return misfit


def _problems(record: SubjectRecord, kind: str, schema: Schema) -> list[str]:
    if record.compatibility == "NONE":
        return []
    others = sorted({one.type for one in record.versions if one.type != kind})
    if others:
        return [f"the subject's schemas are of type {others[0]}, not {kind}"]
    versions = [(one.number, parsed(one.type, one.text)) for one in record.versions]
    return problems_of(
        record.compatibility, schema, versions, lambda reader, writer: reader.unreadable(writer)
    )


def _find(name: SubjectName, record: SubjectRecord, which: str) -> SchemaVersion:
    if record.versions and which == "latest":
        return record.versions[-1]
    for one in record.versions:
        if which in (one.id, str(one.number)):
            return one
    raise SchemaNotFound(f"subject {'/'.join(name)} has no version {which[:40]!r}")


def _no_subject(name: SubjectName) -> SchemaNotFound:
    return SchemaNotFound(
        f"there is no schema subject {'/'.join(name)}; POST "
        f"/v1/schemas/subjects/{'/'.join(name)}/versions makes it"
    )
