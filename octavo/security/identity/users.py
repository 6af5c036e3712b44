"""Users in the metadata store and in memory: password keys, groups, and token revocation.

    /octavo/security/users/NAME      scram_256, scram_512, groups, disabled, not_before_s, deleted
    /octavo/security/user_changes    count, recent: the users that were changed last

Tokens and certificates need no record here; a record can disable a user and revoke its tokens. A
change is announced in `user_changes` before and after it is made, and the users announced last are
read again every `REREAD_S`: so it is seen even if its process crashes before the second
announcement. While the store is away, the users stay as last read.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import structlog

from octavo.metadata.gather_all import gather_each
from octavo.metadata.paths import join
from octavo.metadata.store import (
    BadRecord,
    MetadataStore,
    RecordExists,
    RecordNotFound,
    VersionConflict,
)
from octavo.metadata.topic_records import decode_record, encode_record
from octavo.protocol.codes import OctavoError
from octavo.security.identity.passwords import (
    MECHANISMS,
    SALT_BYTES,
    Credential,
    checked_user,
    is_credential,
    make_credential,
)
from octavo.security.principal import is_principal_name
from octavo.security.record import FollowedRecord

USERS_PATH = "/octavo/security/users"
CHANGES_PATH = "/octavo/security/user_changes"
USERS_MAX = 10_000
GROUPS_MAX = 64
RECENT = 8
_AT_ONCE = 32

log = structlog.get_logger()


class UserExists(OctavoError):
    name = "user-exists"


class UserNotFound(OctavoError):
    name = "user-not-found"


class TooManyUsers(OctavoError):
    name = "too-many-users"


class TooManyGroups(OctavoError):
    name = "too-many-groups"


@dataclass(frozen=True, slots=True)
class ScramRecord:
    salt: str = field(repr=False)
    iterations: int
    stored_key: str = field(repr=False)
    server_key: str = field(repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kept: Credential) -> ScramRecord:
        return cls(kept.salt.hex(), kept.iterations, kept.stored_key.hex(), kept.server_key.hex())

    @property
    def credential(self) -> Credential:
        keys = (bytes.fromhex(one) for one in (self.stored_key, self.server_key))
        return Credential(bytes.fromhex(self.salt), self.iterations, *keys)


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user; without SCRAM keys it has no password. `groups`: without `group:`.

    Tokens issued before `not_before_s` (since 1970) are invalid. With `deleted`, the record stays
    so that old tokens remain invalid.
    """

    scram_256: ScramRecord | None = None
    scram_512: ScramRecord | None = None
    groups: tuple[str, ...] = ()
    disabled: bool = False
    not_before_s: int = 0
    deleted: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def credential(self, mechanism: str) -> Credential | None:
        found = self.scram_256 if mechanism == MECHANISMS[0] else self.scram_512
        return None if found is None else found.credential

    @property
    def has_password(self) -> bool:
        return self.scram_256 is not None or self.scram_512 is not None


@dataclass(frozen=True, slots=True)
class ChangesRecord:
    count: int = 0
    recent: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class _Known(NamedTuple):
    """Version −1: without a record."""

    record: UserRecord
    version: int


NOBODY = UserRecord()
_NOBODY = _Known(NOBODY, -1)
_UNREADABLE = _Known(UserRecord(disabled=True), -1)


class UserStore:
    """Every call may raise `MetadataUnavailable` (a change may have been made) or `BadRecord`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def names(self) -> list[str]:
        """Return the names of all users, also of deleted users."""
        return sorted(_name_of(step) for step in await self._store.children(USERS_PATH))

    async def all(self) -> dict[str, UserRecord]:
        """Return all users except deleted users."""
        await self._store.sync()
        names = await self.names()
        records = await gather_each(names, self.read, _AT_ONCE)
        return {
            name: record
            for name, record in zip(names, records, strict=True)
            if record is not None and not record.deleted
        }

    async def read(self, name: str) -> UserRecord | None:
        """Return the record, also of a deleted user; None if there is none."""
        found = await self.read_known(name)
        return found and found.record

    async def get(self, name: str) -> UserRecord:
        await self._store.sync()
        return _there(name, await self.read(name))

    async def create(
        self, name: str, password: ScramPair | None = None, groups: Iterable[str] = ()
    ) -> None:
        checked_user(name)
        names = _few(groups)
        if len(await self.names()) >= USERS_MAX:
            raise TooManyUsers(f"there are {USERS_MAX} users, the most: delete some, or use OIDC")
        keys = password or (None, None)
        await self._change(
            name,
            lambda old: replace(
                _free(name, old),
                scram_256=keys[0],
                scram_512=keys[1],
                groups=names,
                disabled=False,
                deleted=False,
            ),
        )

    async def set_password(self, name: str, password: ScramPair) -> None:
        await self._change(
            name,
            lambda old: replace(_there(name, old), scram_256=password[0], scram_512=password[1]),
        )

    async def set_groups(self, name: str, groups: Iterable[str]) -> None:
        names = _few(groups)
        await self._change(name, lambda old: replace(_there(name, old), groups=names))

    async def set_disabled(self, name: str, disabled: bool) -> None:
        await self._change(name, lambda old: replace(_there(name, old), disabled=disabled))

    async def delete(self, name: str, now_s: float) -> None:
        await self._change(
            name,
            lambda old: UserRecord(
                not_before_s=_after(_there(name, old), now_s),
                deleted=True,
                extra=old.extra if old else {},
            ),
        )

    async def revoke_tokens(self, name: str, now_s: float) -> None:
        """Revoke all tokens issued to the user until now, also without a record."""
        checked_user(name)
        await self._change(
            name,
            lambda old: replace(
                old or UserRecord(deleted=True), not_before_s=_after(old or NOBODY, now_s)
            ),
        )

    async def _change(self, name: str, make: Callable[[UserRecord | None], UserRecord]) -> None:
        path = path_of(name)
        make(await self.read(name))  # raises if the change is not allowed: announce nothing
        await self._tell(name)
        while True:
            found = await self.read_known(name)
            made = encode_record(make(found and found.record))
            with contextlib.suppress(VersionConflict, RecordExists, RecordNotFound):
                if found is None:
                    await self._store.create(path, made)
                else:
                    await self._store.put(path, made, found.version)
                break
        await self._tell(name)

    async def read_known(self, name: str) -> _Known | None:
        path = path_of(name)
        try:
            value, version = await self._store.get(path)
        except RecordNotFound:
            return None
        record = decode_record(UserRecord, path, value)
        try:
            for mechanism in MECHANISMS:
                credential = record.credential(mechanism)
                if credential is not None and not is_credential(mechanism, credential):
                    raise BadRecord(f"{path}: keys, salt or iterations of {mechanism} are invalid")
        except ValueError:
            raise BadRecord(f"{path}: a key or salt is not in hexadecimal digits") from None
        return _Known(record, version)

    async def changes(self) -> ChangesRecord:
        try:
            return decode_record(
                ChangesRecord, CHANGES_PATH, (await self._store.get(CHANGES_PATH)).value
            )
        except RecordNotFound:
            return ChangesRecord()

    async def _tell(self, name: str) -> None:
        while True:
            with contextlib.suppress(VersionConflict, RecordExists, RecordNotFound):
                try:
                    value, version = await self._store.get(CHANGES_PATH)
                except RecordNotFound:
                    await self._store.create(CHANGES_PATH, encode_record(ChangesRecord(1, (name,))))
                else:
                    old = decode_record(ChangesRecord, CHANGES_PATH, value)
                    recent = (*(one for one in old.recent if one != name), name)[-RECENT:]
                    made = replace(old, count=old.count + 1, recent=recent)
                    await self._store.put(CHANGES_PATH, encode_record(made), version)
                return


ScramPair = tuple[ScramRecord, ScramRecord]


def scram_records(password: str, rng: random.Random) -> ScramPair:
    """Compute what is stored for a password; takes some 20 ms. Raises `InvalidPassword`."""
    first, second = (
        ScramRecord.of(make_credential(one, password, rng.randbytes(SALT_BYTES)))
        for one in MECHANISMS
    )
    return first, second


def path_of(name: str) -> str:
    return join(USERS_PATH, quote(name, safe="").replace(".", "%2E"))


def _name_of(step: str) -> str:
    return unquote(step)


def _there(name: str, record: UserRecord | None) -> UserRecord:
    if record is None or record.deleted:
        raise UserNotFound(f"there is no user {name[:60]!r}: `octavo user list` shows all users")
    return record


def _free(name: str, record: UserRecord | None) -> UserRecord:
    if record is not None and not record.deleted:
        raise UserExists(f"the user {name!r} exists already")
    return record or NOBODY


def _few(groups: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(groups))
    if len(found) > GROUPS_MAX:
        raise TooManyGroups(f"{len(found)} groups: a user is in {GROUPS_MAX} at most")
    return found


def _after(record: UserRecord, now_s: float) -> int:
    """Return from when on tokens are valid: the next second, as tokens hold whole seconds."""
    return max(record.not_before_s, int(now_s) + 1)


class Users:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._records = UserStore(store)
        self._users: dict[str, _Known] = {}
        self._count = -RECENT - 1
        self._followed = FollowedRecord(store, CHANGES_PATH, self._read)
        self._listeners: list[Callable[[frozenset[str]], None]] = []

    async def start(self) -> None:
        await self._followed.start()

    async def close(self) -> None:
        await self._followed.close()

    def get(self, name: str) -> UserRecord:
        return self._users.get(name, _NOBODY).record

    def version(self, name: str) -> int:
        """Return the record's version, which grows with each change; −1 without a record."""
        return self._users.get(name, _NOBODY).version

    def on_change(self, listener: Callable[[frozenset[str]], None]) -> None:
        self._listeners.append(listener)

    async def _read(self) -> None:
        await self._store.sync()
        changes = await self._records.changes()
        everyone = not 0 <= changes.count - self._count <= RECENT
        names = await self._records.names() if everyone else changes.recent
        records = await gather_each(names, self._readable, _AT_ONCE)
        users = {} if everyone else dict(self._users)
        for name, record in zip(names, records, strict=True):
            users.pop(name, None)
            if record is not None:
                users[name] = record
        before, self._users, self._count = self._users, users, changes.count
        looked_at = before.keys() | users.keys() if everyone else names
        changed = frozenset(one for one in looked_at if before.get(one) != users.get(one))
        if changed:
            for listener in tuple(self._listeners):
                listener(changed)

    async def _readable(self, name: str) -> _Known | None:
        try:
            return await self._records.read_known(name)
        except BadRecord as error:
            if self._users.get(name) is not _UNREADABLE:
                log.error("user_unreadable", user=name, reason=str(error))
            return _UNREADABLE


def groups_of(names: Iterable[str]) -> frozenset[str]:
    return frozenset(f"group:{name}" for name in names if is_principal_name(name))
