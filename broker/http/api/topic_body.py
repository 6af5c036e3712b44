"""A topic's and a subscription's settings as JSON: read, checked, shown.

Times are seconds, or text with a unit (`"30s"`, `"7d"`); sizes are bytes, or text with a unit
(`"256MiB"`, `"10GB"`). What this version cannot do yet is refused by name with a 422: a setting
that is accepted is one that works.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.broker.http.call import parse_duration_ms
from octavo.broker.http.problems import Problem
from octavo.broker.types import BOOKIES_MAX, PARTITIONS_MAX, SubscriptionSettings, TopicSettings

TIME = "seconds, or text with a unit: 500ms, 30s, 2m, 4h, 7d"
Time = Annotated[int | float | str | None, Meta(description=TIME)]
Size = Annotated[
    int | str | None, Meta(description="bytes, or text with a unit: 64KiB, 256MiB, 10GB")
]


def _number(least: int, most: int, default: int) -> Meta:
    """What is said of a number. Whether it fits is looked at later, with the others."""
    return Meta(extra_json_schema={"minimum": least, "maximum": most, "default": default})


def _word(default: str, *others: str) -> Meta:
    return Meta(extra_json_schema={"enum": [default, *others], "default": default})


_DEFAULT = TopicSettings()
Bookies = Annotated[int, _number(1, BOOKIES_MAX, _DEFAULT.ensemble_size)]
Later = Annotated[Any, Meta(description="not supported yet", extra_json_schema={"type": "null"})]

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]i?B|B)?", re.IGNORECASE)
_UNIT_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


class Retention(msgspec.Struct, forbid_unknown_fields=True):
    """How long what nobody needs is kept. `null` or absent: for ever."""

    time: Time | UnsetType = UNSET
    size: Size | UnsetType = UNSET


class Rollover(msgspec.Struct, forbid_unknown_fields=True):
    """When a partition's ledger is closed and a new one begun."""

    time: Time | UnsetType = UNSET
    size: Size | UnsetType = UNSET
    entries: Annotated[int, Meta(extra_json_schema={"minimum": 0})] | UnsetType = UNSET


class TopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a topic's creation or change."""

    partitions: Annotated[int, _number(1, PARTITIONS_MAX, _DEFAULT.partitions)] | UnsetType = UNSET
    ensemble_size: Bookies | UnsetType = UNSET
    write_quorum: Annotated[int, _number(1, BOOKIES_MAX, _DEFAULT.write_quorum)] | UnsetType = UNSET
    ack_quorum: Annotated[int, _number(1, BOOKIES_MAX, _DEFAULT.ack_quorum)] | UnsetType = UNSET
    retention: Retention | UnsetType | None = UNSET
    rollover: Rollover | UnsetType = UNSET
    ttl: Later = UNSET
    backlog_quota: Later = UNSET
    compaction: Later = UNSET


AckTimeout = Annotated[
    int | float | str | None,
    Meta(description=TIME, extra_json_schema={"default": 30, "not": {"type": "null"}}),
]


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a subscription's creation."""

    type: Annotated[str, _word("exclusive", "shared")] | UnsetType = UNSET
    start: Annotated[str, _word("earliest", "latest")] | UnsetType = UNSET
    ack_timeout: AckTimeout | UnsetType = UNSET
    max_deliveries: Later = UNSET
    dead_letter_topic: Later = UNSET
    retry_backoff: Later = UNSET


def not_supported(what: str) -> Problem:
    """The 422 for something the API has but this version cannot do."""
    return Problem(
        422,
        "not-supported-yet",
        f"{what} is not supported yet by this version; leave it away, or set it to null",
    )


def topic_settings(body: TopicBody, base: TopicSettings) -> TopicSettings:
    """`base` with what the body sets. Raises a 422 `Problem` and `InvalidSettings`."""
    for name in ("ttl", "backlog_quota", "compaction"):
        if getattr(body, name) not in (UNSET, None):
            raise not_supported(name)
    changes: dict[str, Any] = {
        name: value
        for name in ("partitions", "ensemble_size", "write_quorum", "ack_quorum")
        if (value := getattr(body, name)) is not UNSET
    }
    if body.retention is None:
        changes.update(retention_ms=None, retention_bytes=None)
    elif body.retention is not UNSET:
        _set(changes, "retention_ms", "retention.time", body.retention.time, time_ms)
        _set(changes, "retention_bytes", "retention.size", body.retention.size, size_bytes)
    if body.rollover is not UNSET:
        time, size = body.rollover.time, body.rollover.size
        _set(changes, "rollover_age_ms", "rollover.time", time, time_ms, nullable=False)
        _set(changes, "rollover_bytes", "rollover.size", size, size_bytes, nullable=False)
        if body.rollover.entries is not UNSET:
            changes["rollover_entries"] = body.rollover.entries
    return replace(base, **changes)


def subscription_settings(body: SubscriptionBody) -> SubscriptionSettings:
    """The settings that the body asks for. Raises a 422 `Problem` and `InvalidSettings`."""
    for name in ("max_deliveries", "dead_letter_topic", "retry_backoff"):
        if getattr(body, name) not in (UNSET, None):
            raise not_supported(name)
    changes: dict[str, Any] = {}
    if body.type is not UNSET:
        if body.type in ("failover", "key_shared"):
            raise not_supported(f"subscription type {body.type!r}")
        changes["type"] = body.type
    if body.start is not UNSET:
        if body.start not in ("earliest", "latest"):
            raise Problem(
                422,
                "invalid-settings",
                f"start is {body.start[:60]!r}; it must be 'earliest' or 'latest'. To begin at an "
                "offset, a message id or a time, create the subscription and then seek",
            )
        changes["start"] = body.start
    _set(changes, "ack_timeout_ms", "ack_timeout", body.ack_timeout, time_ms, nullable=False)
    return SubscriptionSettings(**changes)


def time_ms(name: str, value: int | float | str) -> int:
    """A time from JSON in milliseconds. Raises a 422."""
    if isinstance(value, str):
        found = parse_duration_ms(value)
    else:
        found = int(value * 1000) if 0 <= value < 1e12 else None
    if found is None:
        raise Problem(
            422,
            "invalid-settings",
            f"{name} is {value!r}; it must be a number of seconds, or text such as '30s' or '7d'",
        )
    return found


def size_bytes(name: str, value: int | str) -> int:
    """A size from JSON in bytes. Raises a 422."""
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        return int(float(found[1]) * _UNIT_BYTES[(found[2] or "").lower()])
    if isinstance(value, int) and 0 <= value < 2**63:
        return value
    raise Problem(
        422,
        "invalid-settings",
        f"{name} is {value!r}; it must be a number of bytes, or text such as '256MiB'",
    )


def _set(
    changes: dict[str, Any],
    field: str,
    name: str,
    value: Any,
    parse: Callable[[str, Any], int],
    *,
    nullable: bool = True,
) -> None:
    if value is UNSET:
        return
    if value is None and not nullable:
        raise Problem(422, "invalid-settings", f"{name} cannot be null; leave it away")
    changes[field] = None if value is None else parse(name, value)


def seconds(milliseconds: int | None) -> int | float | None:
    """A time as the API shows it."""
    if milliseconds is None:
        return None
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def show_topic_settings(settings: TopicSettings) -> TopicBody:
    """The settings in the form in which they can be given."""
    return TopicBody(
        settings.partitions,
        settings.ensemble_size,
        settings.write_quorum,
        settings.ack_quorum,
        Retention(seconds(settings.retention_ms), settings.retention_bytes),
        Rollover(
            seconds(settings.rollover_age_ms), settings.rollover_bytes, settings.rollover_entries
        ),
    )


def show_subscription_settings(settings: SubscriptionSettings) -> SubscriptionBody:
    """The settings in the form in which they can be given."""
    return SubscriptionBody(settings.type, settings.start, seconds(settings.ack_timeout_ms))
