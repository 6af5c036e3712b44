"""Register schemas by compare-and-set, and keep them in memory to check messages.

An owner keeps the subject's record under a watch, so publishing continues while the metadata store
is away. A version never changes, and is removed only with its subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.broker.errors import (
    INCOMPATIBLE_SCHEMA,
    InvalidSchema,
    SchemaMismatch,
    SchemaNotFound,
    SettingsConflict,
)
from octavo.broker.log import open_batches
from octavo.broker.log.open_batches import Turns
from octavo.broker.schemas.compatibility import MODES
from octavo.broker.schemas.engine import (
    Check,
    Compare,
    Engine,
    InProcess,
    Misfit,
    Problems,
    Read,
    Refused,
    Text,
    TooCostly,
)
from octavo.broker.schemas.kinds import SCHEMA_BYTES_MAX, TYPES, Quick, id_of, quick
from octavo.metadata.one_record import ABSENT
from octavo.metadata.schemas import SchemaStore, SchemaVersion, SubjectRecord
from octavo.metadata.store import RecordExists, RecordNotFound, VersionConflict, Watch
from octavo.protocol.records import Record

SCHEMA_HEADER = "octavo-schema"
"""Names the version of a message's schema, by id or number; absent: the newest."""
VERSIONS_MAX = 1_000
RECORD_CHARS_MAX = 400_000
"""All versions' texts together: the metadata store takes records of 1 MB."""
SUBJECTS_KEPT = 10_000
GIVEN_BYTES_MAX = 4 * SCHEMA_BYTES_MAX
"""A schema as sent, with spaces, escapes and line ends."""
QUICK_STEPS_MAX = 400_000
"""Steps in one turn of the loop: ten milliseconds, usually far less."""
_CHANGES_TRIED_MAX = 8
SubjectName = tuple[str, str]


class Registered(NamedTuple):
    version: SchemaVersion
    new: bool


class _Subject:
    def __init__(self, record: SubjectRecord) -> None:
        self.record = record
        self._versions = {str(one.number): one for one in record.versions}
        self._versions |= {one.id: one for one in record.versions}
        self._quick: dict[int, Quick | None] = {}

    def version(self, name: SubjectName, which: str) -> SchemaVersion:
        if which == "latest" and self.record.versions:
            return self.record.versions[-1]
        if (found := self._versions.get(which)) is None:
            raise _no_version(name, which)
        return found

    def quick(self, version: SchemaVersion) -> Quick | None:
        """Return the quick check; None: only the engine may check messages."""
        if version.number not in self._quick:
            self._quick[version.number] = quick(version.type, version.text)
        return self._quick[version.number]


class MessageCheck:
    """Checks a topic's messages by its subject as it is now; slow checks go to the engine
    together.
    """

    def __init__(self, name: SubjectName, subject: _Subject, engine: Engine, turns: Turns) -> None:
        self._name = name
        self._subject = subject
        self._engine = engine
        self._turns = turns

    async def misfit(self, messages: Sequence[Record]) -> tuple[int, str] | None:
        """Return the first message that does not fit, and why; raise `SchemaCheckUnavailable`."""
        found: tuple[int, str] | None = None
        elsewhere: dict[int, list[tuple[int, bytes]]] = {}
        versions: dict[int, SchemaVersion] = {}
        quickly = 0
        for index, message in enumerate(messages):
            if message.value is None:
                continue  # a tombstone deletes its key, and has no schema
            which = next((v for n, v in message.headers or () if n == SCHEMA_HEADER), None)
            try:
                text = "latest" if which is None else which.decode()
                version = self._subject.version(self._name, text)
            except (SchemaNotFound, UnicodeDecodeError) as error:
                found = (index, f"its header {SCHEMA_HEADER}: {error}")
                break
            check = self._subject.quick(version)
            steps = QUICK_STEPS_MAX + 1 if check is None else check.steps(len(message.value))
            if check is not None and steps <= QUICK_STEPS_MAX:
                if (quickly := quickly + steps) > QUICK_STEPS_MAX:
                    quickly = steps
                    await self._turns.take(open_batches.RECORDS_A_TURN)
                if check.fits(message.value):
                    continue
            versions[version.number] = version
            elsewhere.setdefault(version.number, []).append((index, bytes(message.value)))
            if check is not None and steps <= QUICK_STEPS_MAX:
                break  # the message does not fit; the engine tells why
        await self._turns.take(1 + quickly * open_batches.RECORDS_A_TURN // QUICK_STEPS_MAX)
        for number, values in elsewhere.items():
            said = await self._ask_engine(versions[number], values)
            if said is not None and (found is None or said[0] < found[0]):
                found = said
        return found

    async def _ask_engine(
        self, version: SchemaVersion, values: Sequence[tuple[int, bytes]]
    ) -> tuple[int, str] | None:
        subject = "/".join(self._name)
        question = Check(version.type, version.text, [value for _, value in values])
        answer = await self._engine.ask(self._name, question)
        if isinstance(answer, TooCostly):
            index = values[0][0]
            return index, f"checking it by {subject} version {version.number}: {answer.why}"
        if isinstance(answer, Refused):
            return values[0][0], answer.why
        assert isinstance(answer, Misfit)
        if not answer.why:
            return None
        why = f"it does not fit {subject} version {version.number}: {answer.why}"
        return values[answer.index][0], why


class SchemaRegistry:
    def __init__(
        self,
        records: SchemaStore,
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        engine: Engine | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._records = records
        self._clock = clock
        self._spawn = spawn
        self._engine = engine or InProcess()
        self._turns = turns or Turns()
        self._known: dict[SubjectName, tuple[WatchedRecord[_Subject], Watch]] = {}

    def close(self) -> None:
        for _, watch in tuple(self._known.values()):
            watch.cancel()
        self._known.clear()

    async def subjects(self, namespace: str) -> list[str]:
        return await self._records.subjects(namespace)

    async def subject(self, name: SubjectName) -> SubjectRecord:
        record, version = await self._records.read(*name)
        if version == ABSENT:
            raise _no_subject(name)
        return record

    async def version(self, name: SubjectName, which: str) -> SchemaVersion:
        return _find(name, await self.subject(name), which)

    async def check(
        self, name: SubjectName, kind: str, given: Any, caller: Hashable = None
    ) -> tuple[str, list[str]]:
        """Return the compatibility, and why this schema may not be the next version.

        Different `caller`s take turns.
        """
        record, _ = await self._records.read(*name)
        text = await self._text(kind, given, caller)
        return record.compatibility, await self._problems(record, kind, text, caller)

    async def register(
        self, name: SubjectName, kind: str, given: Any, caller: Hashable = None
    ) -> Registered:
        """Make this schema the next version, unless it is registered."""
        text = await self._text(kind, given, caller)
        made_of = id_of(kind, text)
        for _ in range(_CHANGES_TRIED_MAX):
            record, version = await self._records.read(*name)
            for one in record.versions:
                if one.id == made_of:
                    return Registered(one, new=False)
            if problems := await self._problems(record, kind, text, caller):
                raise INCOMPATIBLE_SCHEMA(
                    f"the schema may not follow those of {'/'.join(name)} "
                    f"({record.compatibility}): {'; '.join(problems[:5])}",
                    problems=problems,
                )
            chars = sum(len(one.text) for one in record.versions) + len(text)
            if len(record.versions) >= VERSIONS_MAX or chars > RECORD_CHARS_MAX:
                raise INCOMPATIBLE_SCHEMA(
                    f"subject {'/'.join(name)} has {len(record.versions)} versions, and {chars} "
                    f"characters with this one; at most {VERSIONS_MAX} versions and "
                    f"{RECORD_CHARS_MAX} characters are allowed: use another subject",
                    problems=[],
                )
            number = record.versions[-1].number + 1 if record.versions else 1
            made = SchemaVersion(number, made_of, kind, text, self._clock())
            changed = replace(record, versions=(*record.versions, made))
            with contextlib.suppress(RecordExists, VersionConflict, RecordNotFound):
                await self._records.write(*name, changed, version)
                return Registered(made, new=True)
        raise SettingsConflict(f"subject {'/'.join(name)} is being changed by others; try again")

    async def set_compatibility(self, name: SubjectName, mode: str) -> SubjectRecord:
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

    async def checker(self, name: SubjectName) -> MessageCheck:
        """Return the check for messages with this subject.

        Raises `SchemaMismatch` when it has no version, and `MetadataUnavailable` when its record
        was never read.
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

    def _fits(self, name: SubjectName, subject: _Subject) -> MessageCheck:
        if not subject.record.versions:
            raise SchemaMismatch(
                f"the topic checks messages by schema subject {'/'.join(name)}, which has no "
                "version: register one, or set `schema` of the topic to null"
            )
        return MessageCheck(name, subject, self._engine, self._turns)

    async def _text(self, kind: str, given: Any, caller: Hashable) -> str:
        if kind not in TYPES:
            raise InvalidSchema(f"type is {kind[:40]!r}; it must be {' or '.join(TYPES)}")
        try:
            sent = json.dumps(given).encode()
        except RecursionError:
            raise InvalidSchema("the schema is nested too deeply") from None
        if len(sent) > GIVEN_BYTES_MAX:
            raise InvalidSchema(
                f"the schema has {len(sent)} bytes as it was sent; at most {GIVEN_BYTES_MAX}"
            )
        answer = await self._engine.ask(("registrations", caller), Read(kind, sent))
        if isinstance(answer, TooCostly):
            raise InvalidSchema(f"the schema costs too much: {answer.why}")
        if isinstance(answer, Refused):
            raise InvalidSchema(answer.why)
        assert isinstance(answer, Text)
        return answer.text

    async def _problems(
        self, record: SubjectRecord, kind: str, text: str, caller: Hashable
    ) -> list[str]:
        if record.compatibility == "NONE" or not record.versions:
            return []
        others = sorted({one.type for one in record.versions if one.type != kind})
        if others:
            return [f"the subject's schemas are of type {others[0]}, not {kind}"]
        of = record.versions if record.compatibility.endswith("TRANSITIVE") else (
            record.versions[-1:]
        )  # fmt: skip
        versions = [(one.number, one.text) for one in of]
        question = Compare(kind, text, record.compatibility, versions)
        answer = await self._engine.ask(("registrations", caller), question)
        if isinstance(answer, TooCostly):
            return [f"it cannot be proved that it is compatible: {answer.why}"]
        if isinstance(answer, Refused):
            return [f"a version cannot be read any more: {answer.why}"]
        assert isinstance(answer, Problems)
        return answer.problems


def _find(name: SubjectName, record: SubjectRecord, which: str) -> SchemaVersion:
    if record.versions and which == "latest":
        return record.versions[-1]
    for one in record.versions:
        if which in (one.id, str(one.number)):
            return one
    raise _no_version(name, which)


def _no_version(name: SubjectName, which: str) -> SchemaNotFound:
    return SchemaNotFound(f"subject {'/'.join(name)} has no version {which[:40]!r}")


def _no_subject(name: SubjectName) -> SchemaNotFound:
    return SchemaNotFound(
        f"there is no schema subject {'/'.join(name)}; POST "
        f"/v1/schemas/subjects/{'/'.join(name)}/versions makes it"
    )
