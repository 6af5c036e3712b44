"""A topic's and a subscription's settings as JSON: read, checked, shown.

Times are seconds, or text with a unit (`"30s"`, `"7d"`); sizes are bytes, or text with a unit
(`"256MiB"`, `"10GB"`). What this version cannot do yet is refused by name with a 422: a setting
that is accepted is one that works.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.broker.http.call import parse_duration_ms
from octavo.broker.http.problems import Problem
from octavo.broker.types import SubscriptionSettings, TopicSettings

Time = int | float | str | None
Size = int | str | None

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
    entries: int | UnsetType = UNSET


class TopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a topic's creation or change."""

    partitions: int | UnsetType = UNSET
    ensemble_size: int | UnsetType = UNSET
    write_quorum: int | UnsetType = UNSET
    ack_quorum: int | UnsetType = UNSET
    retention: Retention | UnsetType | None = UNSET
    rollover: Rollover | UnsetType = UNSET
    ttl: Any = UNSET
    backlog_quota: Any = UNSET
    compaction: Any = UNSET


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a subscription's creation."""

    type: str | UnsetType = UNSET
    start: str | UnsetType = UNSET
    ack_timeout: Time | UnsetType = UNSET
    max_deliveries: Any = UNSET
    dead_letter_topic: Any = UNSET
    retry_backoff: Any = UNSET


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


def show_topic_settings(settings: TopicSettings) -> dict[str, Any]:
    """The settings in the form in which they can be given."""
    return {
        "partitions": settings.partitions,
        "ensemble_size": settings.ensemble_size,
        "write_quorum": settings.write_quorum,
        "ack_quorum": settings.ack_quorum,
        "retention": {
            "time": seconds(settings.retention_ms),
            "size": settings.retention_bytes,
        },
        "rollover": {
            "time": seconds(settings.rollover_age_ms),
            "size": settings.rollover_bytes,
            "entries": settings.rollover_entries,
        },
    }


def show_subscription_settings(settings: SubscriptionSettings) -> dict[str, Any]:
    """The settings in the form in which they can be given."""
    return {
        "type": settings.type,
        "start": settings.start,
        "ack_timeout": seconds(settings.ack_timeout_ms),
    }
