"""Quotas in the metadata store: one record, changed by compare-and-set and followed.

    /octavo/security/quotas    quotas of user:alice, user:*, anonymous, namespace:payments,
                               namespace:*

`user:*` and `namespace:*` fill in what a subject's own quota leaves unset. While the record cannot
be read, the last quotas stay in force.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from octavo.metadata.store import BadRecord, MetadataStore
from octavo.protocol.codes import OctavoError
from octavo.protocol.names import NAME_RULE, is_name
from octavo.security.limits import ANY_NAMESPACE, COUNTS, NAMES, UNLIMITED, Quota, Quotas
from octavo.security.principal import ANY_USER, InvalidPrincipal, checked_principal
from octavo.security.record import FollowedRecord, SharedRecord

QUOTAS_PATH = "/octavo/security/quotas"
_UNREADABLE = -2
_AMOUNT_MAX = 2**53
"""Above this, a float no longer holds every whole number."""
_AMOUNT = re.compile(r"([0-9]{1,16})(?: ?([kMGT]i?)?B?)?")
_UNITS = {"": 1} | {
    letter + i: (1024 if i else 1000) ** power
    for power, letter in enumerate("kMGT", 1)
    for i in ("", "i")
}
_OF_USERS = ("connections", "streams")
_OF_NAMESPACES = ("topics", "subscriptions")
SUBJECT_RULE = (
    "a quota is for user:NAME, for user:* (each authenticated user), for anonymous, for "
    "namespace:NS or for namespace:* (each namespace)"
)

log = structlog.get_logger()


class InvalidQuota(OctavoError):
    name = "invalid-quota"
    http_status = 422


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRecord(Quota):
    subject: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def quota(self) -> Quota:
        return Quota(**self.said)


@dataclass(frozen=True, slots=True)
class QuotasRecord:
    """`extra`: fields that a newer version has written."""

    quotas: tuple[QuotaRecord, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def of(self, subject: str) -> QuotaRecord | None:
        """Return what is set for this subject itself, without defaults."""
        return next((one for one in self.quotas if one.subject == subject), None)


def quota_store(store: MetadataStore) -> SharedRecord[QuotasRecord]:
    return SharedRecord(store, QUOTAS_PATH, QuotasRecord)


def quotas_of(record: QuotasRecord) -> Quotas:
    """Decode quotas. Raises `BadRecord` if any part is invalid: no partial quotas."""
    try:
        for one in record.quotas:
            checked_subject(one.subject)
            for name, amount in one.said.items():
                _check(one.subject, name, amount)
    except InvalidQuota as error:
        raise BadRecord(f"{QUOTAS_PATH}: {error}") from error
    return Quotas({one.subject: one.quota for one in record.quotas})


def with_quota(record: QuotasRecord, subject: str, amounts: Mapping[str, int]) -> QuotasRecord:
    checked_subject(subject)
    for name, amount in amounts.items():
        _check(subject, name, amount)
    before = record.of(subject) or QuotaRecord(subject=subject)
    made = QuotaRecord(subject=subject, **{**before.said, **amounts}, extra=before.extra)
    others = tuple(one for one in record.quotas if one.subject != subject)
    if not made.said:
        return QuotasRecord(others, record.extra)
    return QuotasRecord(_sorted((*others, made)), record.extra)


def without_quota(record: QuotasRecord, subject: str, names: Iterable[str] = ()) -> QuotasRecord:
    """Remove these `names` of the subject's quota; by default all."""
    before = record.of(checked_subject(subject))
    for name in (gone := set(names)):
        _checked_name(name)
    if before is None:
        return record
    kept = {name: amount for name, amount in before.said.items() if gone and name not in gone}
    others = tuple(one for one in record.quotas if one.subject != subject)
    if not kept:
        return QuotasRecord(others, record.extra)
    return QuotasRecord(
        _sorted((*others, QuotaRecord(subject=subject, **kept, extra=before.extra))), record.extra
    )


def parse_amount(text: str) -> int:
    """Parse `100`, `10MB`, `64KiB`, `unlimited`. Raises `InvalidQuota`."""
    if text == "unlimited":
        return UNLIMITED
    found = _AMOUNT.fullmatch(text.replace("K", "k"))
    amount = int(found[1]) * _UNITS[found[2] or ""] if found else 0
    if found is None or amount > _AMOUNT_MAX:
        raise InvalidQuota(
            f"{text[:40]!r} is not an amount: write a whole number, with a unit if you like "
            "(10MB, 64KiB, 5k), or unlimited"
        )
    return amount


def shown_amount(amount: int) -> str:
    if amount == UNLIMITED:
        return "unlimited"
    for unit in reversed(_UNITS):
        size = _UNITS[unit]
        if size > 1 and amount >= size and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)


def checked_subject(text: str) -> str:
    kind, _, name = text.partition(":")
    if text in (ANY_USER, ANY_NAMESPACE, "anonymous"):
        return text
    if kind == "namespace" and is_name(name):
        return text
    if kind == "namespace":
        raise InvalidQuota(f"{text[:60]!r} is not a namespace: {NAME_RULE}")
    try:
        return checked_principal(text, "user")
    except InvalidPrincipal:
        raise InvalidQuota(f"{text[:60]!r} cannot have a quota: {SUBJECT_RULE}") from None


def _check(subject: str, name: str, amount: int) -> None:
    _checked_name(name)
    is_namespace = subject.startswith("namespace:")
    if name in (_OF_USERS if is_namespace else _OF_NAMESPACES):
        right = "user:NAME, user:* or anonymous" if is_namespace else "namespace:NS or namespace:*"
        raise InvalidQuota(
            f"{name} is counted for each {'user' if is_namespace else 'namespace'}, but {subject} "
            f"is a {'namespace' if is_namespace else 'user'}: set it for {right}"
        )
    least = 0 if name in COUNTS else 1
    if amount != UNLIMITED and not least <= amount <= _AMOUNT_MAX:
        raise InvalidQuota(f"{name} is {amount}; it must be at least {least}, or unlimited")


def _checked_name(name: str) -> None:
    if name not in NAMES:
        raise InvalidQuota(f"a quota has no {name[:40]!r}; it has {', '.join(NAMES)}")


def _sorted(quotas: Iterable[QuotaRecord]) -> tuple[QuotaRecord, ...]:
    return tuple(sorted(quotas, key=lambda one: one.subject))


class FollowedQuotas:
    def __init__(self, store: MetadataStore, use: Callable[[Quotas], None]) -> None:
        self._quotas = quota_store(store)
        self._record = FollowedRecord(store, QUOTAS_PATH, self._look)
        self._use = use
        self._version: int | None = None

    async def start(self) -> None:
        """Watch the record; if damaged, it means no quotas. Raises `MetadataUnavailable`."""
        await self._record.start()

    async def close(self) -> None:
        await self._record.close()

    async def _look(self) -> None:
        try:
            record, version = await self._quotas.read()
            if version == self._version:
                return
            quotas = quotas_of(record)
        except BadRecord as error:
            if self._version is not None:
                raise
            # A bad quota record must not keep a broker from starting.
            log.warning("record_unreadable", path=QUOTAS_PATH, reason=str(error))
            record, version, quotas = QuotasRecord(), _UNREADABLE, Quotas()
        self._use(quotas)
        if self._version is not None or quotas:
            log.info("quotas_read", version=version, quotas=len(record.quotas))
        self._version = version
