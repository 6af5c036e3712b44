"""Read, check and show a topic's and a subscription's settings as JSON.

Times are seconds, or text with a unit (`"30s"`, `"7d"`); sizes are bytes, or text with a unit
(`"256MiB"`, `"10GB"`). Settings that this version does not support are refused by name with a 422:
every accepted setting works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.broker.errors import InvalidSettings, SettingsConflict
from octavo.broker.http.call import parse_duration_ms
from octavo.broker.http.problems import Problem
from octavo.broker.policies.rules import OFF, WORDS, check_policies, effective
from octavo.broker.types import (
    BACKOFF_FACTOR_MAX,
    BOOKIES_MAX,
    DELIVERIES_MAX,
    PARTITIONS_MAX,
    SUBSCRIPTION_TYPES,
    UNACKED_MAX,
    RetryBackoff,
    SubscriptionSettings,
    TopicSettings,
)
from octavo.metadata.topics import AutoCreate, NamespaceRecord, Policies
from octavo.protocol.numbers import AMOUNT

OFF_WORD = "off"
"""Turns a policy off, whatever the namespace says; `null` leaves it to the namespace."""
TIME = "seconds, or text with a unit: 500ms, 30s, 2m, 4h, 7d"
Time = Annotated[int | float | str | None, Meta(description=TIME)]
Size = Annotated[
    int | str | None, Meta(description="bytes, or text with a unit: 64KiB, 256MiB, 10GB")
]


def _number(least: int, most: int, default: int) -> Meta:
    """Describe a number, for documentation; limits are checked later, with the other settings."""
    return Meta(extra_json_schema={"minimum": least, "maximum": most, "default": default})


def _word(default: str, *others: str) -> Meta:
    return Meta(extra_json_schema={"enum": [default, *others], "default": default})


_DEFAULT = TopicSettings()
Bookies = Annotated[int, _number(1, BOOKIES_MAX, _DEFAULT.ensemble_size)]
Later = Annotated[Any, Meta(description="not supported yet", extra_json_schema={"type": "null"})]

_RATES = ("publish_bytes", "publish_messages", "dispatch_bytes", "dispatch_messages")
_SHOWN_AS = {
    "retention_ms": "retention.time",
    "retention_bytes": "retention.size",
    "ttl_ms": "ttl",
    "backlog_bytes": "backlog_quota.size",
    "backlog_age_ms": "backlog_quota.time",
    "backlog_policy": "backlog_quota.policy",
    "inactive_ms": "delete_when_inactive",
    "subscription_expiry_ms": "subscription_expiry",
    "message_bytes_max": "message_bytes_max",
    **{name: f"rates.{name}" for name in _RATES},
    "message_time": "message_time",
    "durability": "durability",
}
"""Names of the policies in the API."""
_GIVEN_AS = {
    **_SHOWN_AS,
    "ack_timeout_ms": "ack_timeout",
    "consumer_timeout_ms": "consumer_timeout",
    "compaction_after_bytes": "compaction.after_size",
    "compaction_dirty_ratio": "compaction.dirty_ratio",
    "compaction_tombstones_ms": "compaction.tombstones",
    "rollover_age_ms": "rollover.time",
    "rollover_bytes": "rollover.size",
    "rollover_entries": "rollover.entries",
}
"""Names in the API of all settings whose internal names differ."""
_BOUND = re.compile(r"(\w+) is (.*); it must be between (\d+) and (\d+)(.*)", re.DOTALL)
BACKOFF_MOST_MS = 600_000
"""The default for the longest wait between deliveries: ten minutes."""
COMPACTION_AFTER_BYTES = 64 * 2**20
"""The default of `after_size` in a topic's `compaction`."""

_SIZE = re.compile(rf"({AMOUNT}) ?([KMGT]i?B|B)?", re.IGNORECASE | re.ASCII)
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


class BacklogQuota(msgspec.Struct, forbid_unknown_fields=True):
    """What a subscription may have unacked in a partition, and what happens beyond it."""

    size: Size | UnsetType = UNSET
    time: Time | UnsetType = UNSET
    policy: Annotated[str | None, _word(*WORDS["backlog_policy"])] | UnsetType = UNSET


Rate = Annotated[int | str | None, Meta(description="a second, at each owner of partitions; off")]


class Rates(msgspec.Struct, forbid_unknown_fields=True):
    """What may go into a topic and out of it a second; 429 beyond."""

    publish_bytes: Size | UnsetType = UNSET
    publish_messages: Rate | UnsetType = UNSET
    dispatch_bytes: Size | UnsetType = UNSET
    dispatch_messages: Rate | UnsetType = UNSET


class Compaction(msgspec.Struct, forbid_unknown_fields=True):
    """When brokers make the compacted view anew: of each key the newest message.

    `after_size` of closed ledgers that are not in it, if they are `dirty_ratio` of the messages to
    be read. `tombstones` stay that long. `delete_raw`: ledgers that the view covers go.
    """

    after_size: Size | UnsetType = UNSET
    dirty_ratio: (
        Annotated[
            float,
            Meta(extra_json_schema={"minimum": 0, "maximum": 1, "default": 0.5}),
        ]
        | UnsetType
    ) = UNSET
    tombstones: Time | UnsetType = UNSET
    delete_raw: Annotated[bool, Meta(extra_json_schema={"default": False})] | UnsetType = UNSET


class SchemaOfTopic(msgspec.Struct, forbid_unknown_fields=True):
    """By which schemas messages are; of the topic's namespace."""

    subject: Annotated[str, Meta(description="a subject of /v1/schemas")]
    validate: Annotated[bool, Meta(description="what does not fit is not stored")] = True


class TopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a topic's creation or change."""

    partitions: Annotated[int, _number(1, PARTITIONS_MAX, _DEFAULT.partitions)] | UnsetType = UNSET
    ensemble_size: Bookies | UnsetType = UNSET
    write_quorum: Annotated[int, _number(1, BOOKIES_MAX, _DEFAULT.write_quorum)] | UnsetType = UNSET
    ack_quorum: Annotated[int, _number(1, BOOKIES_MAX, _DEFAULT.ack_quorum)] | UnsetType = UNSET
    retention: Retention | UnsetType | None = UNSET
    rollover: Rollover | UnsetType = UNSET
    ttl: Time | UnsetType = UNSET
    backlog_quota: BacklogQuota | UnsetType | None = UNSET
    compaction: Compaction | UnsetType | None = UNSET
    delete_when_inactive: Time | UnsetType = UNSET
    message_bytes_max: Size | UnsetType = UNSET
    rates: Rates | UnsetType | None = UNSET
    message_time: Annotated[str | None, _word(*WORDS["message_time"])] | UnsetType = UNSET
    durability: Annotated[str | None, _word(*WORDS["durability"])] | UnsetType = UNSET
    subscription_expiry: Time | UnsetType = UNSET
    schema: SchemaOfTopic | UnsetType | None = UNSET


class AutoCreateBody(msgspec.Struct, forbid_unknown_fields=True):
    """How a topic is made that somebody publishes to, and that is not there."""

    partitions: Annotated[int, _number(1, PARTITIONS_MAX, _DEFAULT.partitions)] | UnsetType = UNSET
    ensemble_size: Bookies | UnsetType = UNSET
    write_quorum: Annotated[int, _number(1, BOOKIES_MAX, _DEFAULT.write_quorum)] | UnsetType = UNSET
    ack_quorum: Annotated[int, _number(1, BOOKIES_MAX, _DEFAULT.ack_quorum)] | UnsetType = UNSET


class NamespaceBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a namespace's creation or change: what its topics do that say nothing."""

    encrypted: bool | UnsetType | None = UNSET
    auto_create: AutoCreateBody | UnsetType | None = UNSET
    retention: Retention | UnsetType | None = UNSET
    ttl: Time | UnsetType = UNSET
    backlog_quota: BacklogQuota | UnsetType | None = UNSET
    delete_when_inactive: Time | UnsetType = UNSET
    message_bytes_max: Size | UnsetType = UNSET
    rates: Rates | UnsetType | None = UNSET
    message_time: Annotated[str | None, _word(*WORDS["message_time"])] | UnsetType = UNSET
    durability: Annotated[str | None, _word(*WORDS["durability"])] | UnsetType = UNSET
    subscription_expiry: Time | UnsetType = UNSET


class Backoff(msgspec.Struct, forbid_unknown_fields=True):
    """How long a message waits for its next delivery. `null` or absent: not at all."""

    first: Annotated[int | float | str, Meta(description=TIME)]
    most: Annotated[int | float | str | None, Meta(description=TIME + "; 10 minutes")] = None
    factor: Annotated[
        float,
        Meta(extra_json_schema={"minimum": 1, "maximum": BACKOFF_FACTOR_MAX, "default": 2}),
    ] = 2.0


AckTimeout = Annotated[
    int | float | str | None,
    Meta(description=TIME, extra_json_schema={"default": 30, "not": {"type": "null"}}),
]


ConsumerTimeout = Annotated[
    int | float | str | None,
    Meta(description=TIME, extra_json_schema={"default": 5, "not": {"type": "null"}}),
]
Unacked = Annotated[
    int | None,
    Meta(
        description="messages of one partition; null: what the broker allows",
        extra_json_schema={"minimum": 1, "maximum": UNACKED_MAX},
    ),
]
Values = Annotated[str | list[str], Meta(description="one of them; '*' alone: any")]


class FilterBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages are the subscription's; the others are acked without being delivered."""

    headers: Annotated[
        dict[str, Values], Meta(description="all of these headers, each with one of its values")
    ] = {}
    key_prefix: Annotated[str | None, Meta(description="what keys begin with")] = None


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a subscription's creation."""

    type: Annotated[str, _word(*SUBSCRIPTION_TYPES)] | UnsetType = UNSET
    start: Annotated[str, _word("earliest", "latest")] | UnsetType = UNSET
    ack_timeout: AckTimeout | UnsetType = UNSET
    max_deliveries: (
        Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": DELIVERIES_MAX})]
        | UnsetType
        | None
    ) = UNSET
    dead_letter_topic: (
        Annotated[
            str,
            Meta(description="topic, or namespace/topic; by default {topic}-{subscription}-dlq"),
        ]
        | UnsetType
        | None
    ) = UNSET
    retry_backoff: Backoff | UnsetType | None = UNSET
    dead_letter_subscription: (
        Annotated[str, Meta(description="of that topic; by default of this one's name")]
        | UnsetType
        | None
    ) = UNSET
    retry_topic: (
        Annotated[
            str,
            Meta(description="topic, or namespace/topic; by default {topic}-{subscription}-retry"),
        ]
        | UnsetType
        | None
    ) = UNSET
    retry_deliveries: (
        Annotated[
            int,
            Meta(
                description="before a message goes there; 1 where only retry_topic is given",
                extra_json_schema={"minimum": 1, "maximum": DELIVERIES_MAX},
            ),
        ]
        | UnsetType
        | None
    ) = UNSET
    retry_subscription: (
        Annotated[str, Meta(description="of that topic; by default of this one's name")]
        | UnsetType
        | None
    ) = UNSET
    consumer_timeout: ConsumerTimeout | UnsetType = UNSET
    max_unacked: Unacked | UnsetType = UNSET
    max_unacked_per_consumer: Unacked | UnsetType = UNSET
    filter: FilterBody | UnsetType | None = UNSET
    durable: Annotated[bool, Meta(extra_json_schema={"default": True})] | UnsetType = UNSET


@contextmanager
def _told_as_given() -> Iterator[None]:
    """Convert the core's errors about settings to the API's names and units."""
    try:
        yield
    except InvalidSettings as error:
        name, _, rest = str(error).partition(" is ")
        if name not in _GIVEN_AS:
            raise
        found = _BOUND.fullmatch(str(error))
        if found is not None and name.endswith("_ms"):
            least, most = (f"{int(bound) / 1000:.15g}" for bound in found.group(3, 4))
            rest = f"{int(found[2]) / 1000:g} s; it must be between {least} and {most} s{found[5]}"
        raise InvalidSettings(f"{_GIVEN_AS[name]} is {rest}") from None


@_told_as_given()
def topic_settings(body: TopicBody, base: TopicSettings) -> TopicSettings:
    """Return `base` with the body's settings. Raises a 422 `Problem` and `InvalidSettings`."""
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
    changes["policies"] = replace(base.policies, **_said_policies(body))
    _set_compaction(changes, body.compaction, base)
    if body.schema is None:
        changes.update(schema_subject=None, schema_validate=False)
    elif body.schema is not UNSET:
        changes.update(schema_subject=body.schema.subject, schema_validate=body.schema.validate)
    return replace(base, **changes)


@_told_as_given()
def namespace_record(body: NamespaceBody, base: NamespaceRecord) -> NamespaceRecord:
    """Return `base` with the body's settings, except for encryption.

    Raises a 422 `Problem` and `InvalidSettings`.
    """
    changes = _said_policies(body)
    if body.retention is None:
        changes.update(retention_ms=None, retention_bytes=None)
    elif body.retention is not UNSET:
        _set(changes, "retention_ms", "retention.time", body.retention.time, time_ms)
        _set(changes, "retention_bytes", "retention.size", body.retention.size, size_bytes)
    policies = replace(base.policies, **changes)
    check_policies(policies)
    if body.auto_create is UNSET:
        return replace(base, policies=policies)
    if body.auto_create is None:
        return replace(base, policies=policies, auto_create=None)
    said = {
        name: value
        for name in ("partitions", "ensemble_size", "write_quorum", "ack_quorum")
        if (value := getattr(body.auto_create, name)) is not UNSET
    }
    made = TopicSettings(**said)  # checks the combination
    auto_create = AutoCreate(
        made.partitions, made.ensemble_size, made.write_quorum, made.ack_quorum
    )
    return replace(base, policies=policies, auto_create=auto_create)


def _said_policies(body: TopicBody | NamespaceBody) -> dict[str, Any]:
    """Return the policies that a body changes, without retention; null unsets a policy."""
    found: dict[str, Any] = {}
    _set(found, "ttl_ms", "ttl", body.ttl, time_ms)
    _set(found, "inactive_ms", "delete_when_inactive", body.delete_when_inactive, time_ms)
    _set(found, "subscription_expiry_ms", "subscription_expiry", body.subscription_expiry, time_ms)
    _set(found, "message_bytes_max", "message_bytes_max", body.message_bytes_max, size_bytes)
    quota, rates = body.backlog_quota, body.rates
    if quota is None:
        found.update(backlog_bytes=None, backlog_age_ms=None, backlog_policy=None)
    elif quota is not UNSET:
        _set(found, "backlog_bytes", "backlog_quota.size", quota.size, size_bytes)
        _set(found, "backlog_age_ms", "backlog_quota.time", quota.time, time_ms)
        if quota.policy is not UNSET:
            found["backlog_policy"] = quota.policy
    if rates is None:
        found.update(dict.fromkeys(_RATES))
    elif rates is not UNSET:
        for name in _RATES:
            parse = size_bytes if name.endswith("bytes") else _whole_number
            _set(found, name, f"rates.{name}", getattr(rates, name), parse)
    for name in ("message_time", "durability"):
        if (word := getattr(body, name)) is not UNSET:
            found[name] = word
    return found


def _whole_number(name: str, value: int | str) -> int:
    if isinstance(value, int) and 0 < value < 2**63:
        return value
    raise Problem(
        422, "invalid-settings", f"{name} is {value!r}; it must be a whole number above 0, or 'off'"
    )


def _set_compaction(
    changes: dict[str, Any], body: Compaction | UnsetType | None, base: TopicSettings
) -> None:
    if body is UNSET or body is None:
        if body is None:
            changes["compaction_after_bytes"] = None
        return
    size, tombstones = body.after_size, body.tombstones
    if base.compaction_after_bytes is None:
        changes["compaction_after_bytes"] = COMPACTION_AFTER_BYTES
    _set(
        changes, "compaction_after_bytes", "compaction.after_size", size, size_bytes, nullable=False
    )
    _set(
        changes, "compaction_tombstones_ms", "compaction.tombstones", tombstones, time_ms,
        nullable=False,
    )  # fmt: skip
    if body.dirty_ratio is not UNSET:
        changes["compaction_dirty_ratio"] = body.dirty_ratio
    if body.delete_raw is not UNSET:
        changes["compaction_delete_raw"] = body.delete_raw


def _show_compaction(settings: TopicSettings) -> Compaction | None:
    if settings.compaction_after_bytes is None:
        return None
    return Compaction(
        settings.compaction_after_bytes,
        settings.compaction_dirty_ratio,
        seconds(settings.compaction_tombstones_ms),
        settings.compaction_delete_raw,
    )


@_told_as_given()
def subscription_settings(body: SubscriptionBody) -> SubscriptionSettings:
    """Return the settings that the body asks for. Raises a 422 `Problem` and `InvalidSettings`."""
    changes: dict[str, Any] = {}
    if body.type is not UNSET:
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
    if body.retry_backoff is not UNSET and body.retry_backoff is not None:
        changes["retry_backoff"] = _backoff(body.retry_backoff)
    for name in (
        "max_deliveries", "dead_letter_topic", "dead_letter_subscription",
        "retry_topic", "retry_deliveries", "retry_subscription",
    ):  # fmt: skip
        if (value := getattr(body, name)) is not UNSET and value is not None:
            changes[name] = value
    _set(
        changes, "consumer_timeout_ms", "consumer_timeout", body.consumer_timeout, time_ms,
        nullable=False,
    )  # fmt: skip
    for name in ("max_unacked", "max_unacked_per_consumer", "durable"):
        if getattr(body, name) is not UNSET:
            changes[name] = getattr(body, name)
    if body.filter is not UNSET and body.filter is not None:
        changes["filter_key_prefix"] = body.filter.key_prefix
        changes["filter_headers"] = tuple(
            (name, (values,) if isinstance(values, str) else tuple(values))
            for name, values in sorted(body.filter.headers.items())
        )
    return SubscriptionSettings(**changes)


def _backoff(body: Backoff) -> RetryBackoff:
    first_ms = time_ms("retry_backoff.first", body.first)
    if body.most is None:
        return RetryBackoff(first_ms, max(first_ms, BACKOFF_MOST_MS), body.factor)
    return RetryBackoff(first_ms, time_ms("retry_backoff.most", body.most), body.factor)


def time_ms(name: str, value: int | float | str) -> int:
    """Convert a time from JSON to milliseconds. Raises a 422."""
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
    """Convert a size from JSON to bytes. Raises a 422."""
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
    if value == OFF_WORD and nullable:
        changes[field] = OFF
    else:
        changes[field] = None if value is None else parse(name, value)


def seconds(milliseconds: int | None) -> int | float | str | None:
    """Return a time as the API shows it."""
    if milliseconds is None:
        return None
    if milliseconds == OFF:
        return OFF_WORD
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def _amount(value: int | None) -> int | str | None:
    """Return a size or a rate as the API shows it."""
    return OFF_WORD if value == OFF else value


def _seconds(milliseconds: int) -> int | float:
    found = seconds(milliseconds)
    assert isinstance(found, int | float)
    return found


def show_topic_settings(settings: TopicSettings) -> TopicBody:
    """Return the topic's settings in the form of a request."""
    return TopicBody(
        settings.partitions,
        settings.ensemble_size,
        settings.write_quorum,
        settings.ack_quorum,
        Retention(seconds(settings.retention_ms), _amount(settings.retention_bytes)),
        Rollover(
            seconds(settings.rollover_age_ms), settings.rollover_bytes, settings.rollover_entries
        ),
        schema=UNSET
        if settings.schema_subject is None
        else SchemaOfTopic(settings.schema_subject, settings.schema_validate),
        **_shown_policies(settings.policies),
        compaction=_show_compaction(settings),
    )


def show_namespace(record: NamespaceRecord) -> NamespaceBody:
    """Return a namespace's settings in the form of a request."""
    policies, auto = record.policies, record.auto_create
    return NamespaceBody(
        record.encrypted,
        None
        if auto is None
        else AutoCreateBody(
            auto.partitions, auto.ensemble_size, auto.write_quorum, auto.ack_quorum
        ),
        UNSET
        if policies.retention_ms is None and policies.retention_bytes is None
        else Retention(seconds(policies.retention_ms), _amount(policies.retention_bytes)),
        **_shown_policies(policies),
    )


def _shown_policies(policies: Policies) -> dict[str, Any]:
    """Return the policies that are set."""
    shown = {
        "ttl": seconds(policies.ttl_ms),
        "delete_when_inactive": seconds(policies.inactive_ms),
        "subscription_expiry": seconds(policies.subscription_expiry_ms),
        "message_bytes_max": _amount(policies.message_bytes_max),
        "message_time": policies.message_time,
        "durability": policies.durability,
    }
    found: dict[str, Any] = {name: value for name, value in shown.items() if value is not None}
    quota = (policies.backlog_bytes, policies.backlog_age_ms, policies.backlog_policy)
    if quota != (None, None, None):
        found["backlog_quota"] = BacklogQuota(_amount(quota[0]), seconds(quota[1]), quota[2])
    rates = [_amount(getattr(policies, name)) for name in _RATES]
    if any(rate is not None for rate in rates):
        found["rates"] = Rates(*rates)
    return found


class Holds(msgspec.Struct):
    """What holds of a policy, and who says so: the topic, its namespace, or nobody (default)."""

    value: int | float | str | None
    source: Annotated[str, _word("default", "topic", "namespace")] = msgspec.field(name="from")


def show_effective(topic: TopicSettings, namespace: Policies) -> dict[str, Holds]:
    """Return each policy under its API name; sizes in bytes, times in seconds."""
    return {
        _SHOWN_AS[name]: Holds(
            seconds(one.value)
            if name.endswith("_ms") and isinstance(one.value, int)
            else one.value,
            one.source,
        )
        for name, one in effective(topic.own_policies, namespace).items()
    }


def show_subscription_settings(settings: SubscriptionSettings) -> SubscriptionBody:
    """Return the subscription's settings in the form of a request."""
    backoff = settings.retry_backoff
    headers: dict[str, str | list[str]] = {
        name: [*values] for name, values in settings.filter_headers
    }
    has_filter = headers or settings.filter_key_prefix is not None
    return SubscriptionBody(
        settings.type,
        settings.start,
        seconds(settings.ack_timeout_ms),
        settings.max_deliveries,
        settings.dead_letter_topic or None,
        dead_letter_subscription=settings.dead_letter_subscription or None,
        retry_topic=settings.retry_topic or None,
        retry_deliveries=settings.retry_deliveries,
        retry_subscription=settings.retry_subscription or None,
        retry_backoff=backoff
        and Backoff(_seconds(backoff.first_ms), _seconds(backoff.most_ms), backoff.factor),
        consumer_timeout=seconds(settings.consumer_timeout_ms),
        max_unacked=settings.max_unacked,
        max_unacked_per_consumer=settings.max_unacked_per_consumer,
        filter=FilterBody(headers, settings.filter_key_prefix) if has_filter else None,
        durable=settings.durable,
    )


@contextmanager
def telling_differences() -> Iterator[None]:
    """Add the differing settings to a conflict's message, in the form of a request."""
    try:
        yield
    except SettingsConflict as error:
        found, wanted = _as_given(error.found), _as_given(error.wanted)
        told = ", ".join(
            f"{name} is {found.get(name, 'null')}, not {wanted.get(name, 'null')}"
            for name in {**found, **wanted}
            if found.get(name) != wanted.get(name)
        )
        how = (
            "an update changes them (octavo topic update, or PATCH)"
            if isinstance(error.found, TopicSettings)
            else "a subscription keeps those that it was made with: use it as it is, or another "
            "name, or delete it"
        )
        raise SettingsConflict(f"{error}: {told}; {how}" if told else str(error)) from None


def _as_given(settings: object) -> dict[str, str]:
    """Return each setting as JSON, by its name."""
    shown: TopicBody | SubscriptionBody
    if isinstance(settings, TopicSettings):
        shown = show_topic_settings(settings)
    elif isinstance(settings, SubscriptionSettings):
        shown = show_subscription_settings(settings)
    else:
        return {}
    fields = msgspec.to_builtins(shown)
    return {name: msgspec.json.encode(value).decode() for name, value in fields.items()}
