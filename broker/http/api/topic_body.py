"""Read, check and show the settings of topics and subscriptions as JSON.

Times are seconds or text (`"30s"`); sizes are bytes or text (`"256MiB"`, `"10GB"`). The bodies are
made from metadata/topic_settings.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.broker.errors import InvalidSettings, SettingsConflict
from octavo.broker.http.call import parse_duration_ms
from octavo.broker.types import (
    BACKOFF_FACTOR_MAX,
    SUBSCRIPTION_SETTINGS,
    SUBSCRIPTION_TYPES,
    RetryBackoff,
    SubscriptionSettings,
    TopicSettings,
)
from octavo.metadata.topic_settings import (
    AUTO_CREATE,
    COMPACTION_AFTER_BYTES,
    OFF,
    POLICIES,
    RETENTION,
    TOPIC_SETTINGS,
    AutoCreate,
    Policies,
    Setting,
    Unit,
    check_policies,
    effective,
)
from octavo.metadata.topics import NamespaceRecord
from octavo.protocol.numbers import AMOUNT

OFF_WORD = "off"
"""Turns a policy off; `null` takes the namespace's value."""
TIME = "seconds, or text with a unit: 500ms, 30s, 2m, 4h, 7d"
Time = Annotated[int | float | str | None, Meta(description=TIME)]
Size = Annotated[
    int | str | None, Meta(description="bytes, or text with a unit: 64KiB, 256MiB, 10GB")
]
Rate = Annotated[
    int | str | None, Meta(description="per second, at each owner of partitions; or off")
]


def seconds(milliseconds: int | None) -> int | float | str | None:
    if milliseconds is None:
        return None
    if milliseconds == OFF:
        return OFF_WORD
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def _word(default: str, *others: str) -> Meta:
    return Meta(extra_json_schema={"enum": [default, *others], "default": default})


BACKOFF_MOST_MS = 600_000

_SIZE = re.compile(rf"({AMOUNT}) ?([KMGT]i?B|B)?", re.IGNORECASE | re.ASCII)
_UNIT_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


class SchemaOfTopic(msgspec.Struct, forbid_unknown_fields=True):
    """The schemas of the topic's messages, in the topic's namespace."""

    subject: Annotated[str, Meta(description="a subject of /v1/schemas")]
    validate: Annotated[bool, Meta(description="refuse messages that do not fit")] = True


_GROUPS = {
    "retention": ("Retention", "How long acked messages are kept. `null` or absent: for ever."),
    "rollover": ("Rollover", "When a partition's ledger is closed and a new one begun."),
    "backlog_quota": (
        "BacklogQuota",
        "The most that a subscription may have unacked in a partition, and what happens beyond.",
    ),
    "rates": ("Rates", "The most that may go into and out of a topic per second; 429 beyond."),
    "compaction": (
        "Compaction",
        "When brokers renew the compacted view, which has each key's newest message.\n\n"
        "`after_size` of closed ledgers that are not in it, if they are `dirty_ratio` of the "
        "messages to\nread. `tombstones` stay for that time. `delete_raw`: remove ledgers that the "
        "view covers.",
    ),
}
_NEVER_NULL = "rollover"
_ALWAYS_SHOWN = ("retention", "rollover")
_KINDS: Mapping[Unit, Any] = {
    Unit.TIME: Time, Unit.SIZE: Size, Unit.RATE: Rate, Unit.NUMBER: int, Unit.SHARE: float,
    Unit.SWITCH: bool,
}  # fmt: skip
_DEFAULTS = {one.name: one.default for one in fields(TopicSettings)}
_TOPIC = {**TOPIC_SETTINGS, **POLICIES}


def _kind(field: str, setting: Setting) -> Any:
    """Bounds are checked later, with the other settings."""
    if setting.words:
        return Annotated[str | None, _word(*setting.words)]
    kind: Any = _KINDS[setting.unit]
    schema: dict[str, Any] = {}
    if setting.unit in (Unit.NUMBER, Unit.SHARE):
        schema = {"minimum": setting.least, "maximum": setting.most}
    if setting.unit in (Unit.NUMBER, Unit.SHARE, Unit.SWITCH):
        schema["default"] = _DEFAULTS[field]
    return Annotated[kind, Meta(extra_json_schema=schema)] if schema else kind


def _struct(name: str, doc: str, members: Mapping[str, Any]) -> type[msgspec.Struct]:
    made = [(member, kind | UnsetType, UNSET) for member, kind in members.items()]
    return msgspec.defstruct(
        name, made, namespace={"__doc__": doc}, module=__name__, forbid_unknown_fields=True
    )


def _structs() -> dict[str, type[msgspec.Struct]]:
    members: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
    for field, setting in _TOPIC.items():
        group, _, name = setting.path.rpartition(".")
        if group in members:
            members[group][name] = _kind(field, setting)
    made = {group: _struct(*_GROUPS[group], inner) for group, inner in members.items()}
    return {**made, "schema": SchemaOfTopic}


_STRUCTS = _structs()


def _with_settings(declared: Mapping[str, Setting], **others: Any) -> Any:
    members = others
    for field, setting in declared.items():
        group, _, name = setting.path.rpartition(".")
        if not group:
            members[name] = _kind(field, setting)
        else:
            made = _STRUCTS[group]
            members[group] = made if group == _NEVER_NULL else made | None
    return _struct("_Settings", "", members)


class TopicBody(_with_settings(_TOPIC)):  # type: ignore[misc]
    """The body of a topic's creation or change."""

    schema_name: ClassVar = "TopicSettings"


class AutoCreateBody(_with_settings(AUTO_CREATE)):  # type: ignore[misc]
    """How a publish creates a missing topic."""


_OF_NAMESPACE = {"encrypted": bool | None, "auto_create": AutoCreateBody | None}


class NamespaceBody(_with_settings(POLICIES, **_OF_NAMESPACE)):  # type: ignore[misc]
    """The body of a namespace's creation or change: the defaults of its topics."""

    schema_name: ClassVar = "NamespaceSettings"


class Backoff(msgspec.Struct, forbid_unknown_fields=True):
    """How long a message waits for its next delivery. `null` or absent: no wait."""

    first: Annotated[int | float | str, Meta(description=TIME)]
    most: Annotated[int | float | str | None, Meta(description=TIME + "; 10 minutes")] = None
    factor: Annotated[
        float,
        Meta(extra_json_schema={"minimum": 1, "maximum": BACKOFF_FACTOR_MAX, "default": 2}),
    ] = 2.0


def _time(default_ms: int) -> Meta:
    default = seconds(default_ms)
    return Meta(description=TIME, extra_json_schema={"default": default, "not": {"type": "null"}})


def _number(field: str, description: str | None = None) -> Meta:
    one = SUBSCRIPTION_SETTINGS[field]
    bounds = {"minimum": one.least, "maximum": one.most}
    return Meta(description=description, extra_json_schema=bounds)


_SUBSCRIPTION = SubscriptionSettings()
AckTimeout = Annotated[int | float | str | None, _time(_SUBSCRIPTION.ack_timeout_ms)]
ConsumerTimeout = Annotated[int | float | str | None, _time(_SUBSCRIPTION.consumer_timeout_ms)]
Unacked = Annotated[
    int | None,
    _number("max_unacked", "messages of one partition; null: the broker's limit"),
]
Values = Annotated[str | list[str], Meta(description="one of them; '*' alone: any")]


class FilterBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages belong to the subscription; the others are acked without a delivery."""

    headers: Annotated[
        dict[str, Values], Meta(description="all of these headers, each with one of these values")
    ] = {}
    key_prefix: Annotated[str | None, Meta(description="the beginning of keys")] = None


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a subscription's creation."""

    schema_name: ClassVar = "SubscriptionSettings"

    type: Annotated[str, _word(*SUBSCRIPTION_TYPES)] | UnsetType = UNSET
    start: Annotated[str, _word("earliest", "latest")] | UnsetType = UNSET
    ack_timeout: AckTimeout | UnsetType = UNSET
    max_deliveries: Annotated[int, _number("max_deliveries")] | UnsetType | None = UNSET
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
            _number(
                "retry_deliveries", "before a message goes there; 1 if only retry_topic is given"
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


def topic_settings(body: TopicBody, base: TopicSettings) -> TopicSettings:
    changes = _read(body, _TOPIC)
    policies = {name: changes.pop(name) for name in POLICIES if name in changes.keys() - RETENTION}
    if isinstance(body.compaction, msgspec.Struct) and base.compaction_after_bytes is None:
        changes.setdefault("compaction_after_bytes", COMPACTION_AFTER_BYTES)
    if body.schema is None:
        changes["schema_validate"] = False
    return replace(base, policies=replace(base.policies, **policies), **changes)


def namespace_record(body: NamespaceBody, base: NamespaceRecord) -> NamespaceRecord:
    policies = replace(base.policies, **_read(body, POLICIES))
    check_policies(policies)
    if body.auto_create is UNSET:
        return replace(base, policies=policies)
    if body.auto_create is None:
        return replace(base, policies=policies, auto_create=None)
    said = _read(body.auto_create, AUTO_CREATE)
    TopicSettings(**said)  # checks the combination
    return replace(base, policies=policies, auto_create=AutoCreate(**said))


def _read(body: msgspec.Struct, declared: Mapping[str, Setting]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, setting in declared.items():
        group, _, name = setting.path.rpartition(".")
        within = getattr(body, group) if group else body
        value = UNSET if within is UNSET else getattr(within, name, None)
        if within is None and _DEFAULTS.get(field) is None:
            found[field] = None
        elif within is not None and value is not UNSET:
            found[field] = _value(setting, value, is_policy=field in POLICIES)
    return found


def _value(setting: Setting, value: Any, *, is_policy: bool = False) -> Any:
    parse = _PARSERS.get(setting.unit)
    if parse is None or (is_policy and value is None):
        return value
    if is_policy and value == OFF_WORD:
        return OFF
    if value is None:
        raise InvalidSettings(f"{setting.path} cannot be null; omit it", setting.path)
    return parse(setting.path, value)


def subscription_settings(body: SubscriptionBody) -> SubscriptionSettings:
    changes: dict[str, Any] = {}
    if body.type is not UNSET:
        changes["type"] = body.type
    if body.start is not UNSET:
        if body.start not in ("earliest", "latest"):
            raise InvalidSettings(
                f"start is {body.start[:60]!r}; it must be 'earliest' or 'latest'. To begin at an "
                "offset, a message id or a time, create the subscription and then seek",
                "start",
            )
        changes["start"] = body.start
    for name, setting in SUBSCRIPTION_SETTINGS.items():
        if (value := getattr(body, setting.path)) is not UNSET and (
            value is not None or setting.unit is Unit.TIME
        ):
            changes[name] = _value(setting, value)
    if body.retry_backoff is not UNSET and body.retry_backoff is not None:
        changes["retry_backoff"] = _backoff(body.retry_backoff)
    for name in (
        "dead_letter_topic", "dead_letter_subscription", "retry_topic", "retry_subscription"
    ):  # fmt: skip
        if (value := getattr(body, name)) is not UNSET and value is not None:
            changes[name] = value
    if body.durable is not UNSET:
        changes["durable"] = body.durable
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


def _whole_number(name: str, value: int | str) -> int:
    if isinstance(value, int) and 0 < value < 2**63:
        return value
    raise InvalidSettings(f"{name} is {value!r}; it must be a whole number above 0, or 'off'", name)


def time_ms(name: str, value: int | float | str) -> int:
    if isinstance(value, str):
        found = parse_duration_ms(value)
    else:
        found = int(value * 1000) if 0 <= value < 1e12 else None
    if found is None:
        raise InvalidSettings(
            f"{name} is {value!r}; it must be a number of seconds, or text such as '30s' or '7d'",
            name,
        )
    return found


def size_bytes(name: str, value: int | str) -> int:
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        return int(float(found[1]) * _UNIT_BYTES[(found[2] or "").lower()])
    if isinstance(value, int) and 0 <= value < 2**63:
        return value
    raise InvalidSettings(
        f"{name} is {value!r}; it must be a number of bytes, or text such as '256MiB'", name
    )


_PARSERS: Mapping[Unit, Callable[[str, Any], int]] = {
    Unit.TIME: time_ms, Unit.SIZE: size_bytes, Unit.RATE: _whole_number,
}  # fmt: skip


def _seconds(milliseconds: int) -> int | float:
    found = seconds(milliseconds)
    assert isinstance(found, int | float)
    return found


def show_topic_settings(settings: TopicSettings) -> TopicBody:
    values = {
        name: getattr(settings if name in TOPIC_SETTINGS else settings.policies, name)
        for name in _TOPIC
    }
    shown = _shown(values, _TOPIC, _ALWAYS_SHOWN)
    if settings.compaction_after_bytes is None:
        shown["compaction"] = None
    if settings.schema_subject is None:
        del shown["schema"]
    return TopicBody(**shown)


def show_namespace(record: NamespaceRecord) -> NamespaceBody:
    auto = record.auto_create
    values = {name: getattr(record.policies, name) for name in POLICIES}
    return NamespaceBody(
        encrypted=record.encrypted,
        auto_create=auto and AutoCreateBody(**{name: getattr(auto, name) for name in AUTO_CREATE}),
        **_shown(values, POLICIES),
    )


def _shown(
    values: Mapping[str, Any], declared: Mapping[str, Setting], always: Collection[str] = ()
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, setting in declared.items():
        group, _, name = setting.path.rpartition(".")
        shown = _as_shown(setting, values[field])
        if group:
            found.setdefault(group, {})[name] = shown
        elif shown is not None:
            found[name] = shown
    return {
        name: _STRUCTS[name](**one) if name in _STRUCTS else one
        for name, one in found.items()
        if name not in _STRUCTS or name in always or any(i is not None for i in one.values())
    }


def _as_shown(setting: Setting, value: Any) -> Any:
    if setting.unit is Unit.TIME:
        return seconds(value)
    return OFF_WORD if value == OFF and setting.unit in _PARSERS else value


class Holds(msgspec.Struct):
    """The value in force, and whose it is: the topic's, its namespace's, or the default."""

    value: int | float | str | None
    source: Annotated[str, _word("default", "topic", "namespace")] = msgspec.field(name="from")


def show_effective(topic: TopicSettings, namespace: Policies) -> dict[str, Holds]:
    """Return each policy under its API name, in bytes and seconds."""
    return {
        POLICIES[name].path: Holds(_as_shown(POLICIES[name], one.value), one.source)
        for name, one in effective(topic.own_policies, namespace).items()
    }


def show_subscription_settings(settings: SubscriptionSettings) -> SubscriptionBody:
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
            else "a subscription's settings never change: use it as it is, or another name, or "
            "delete it"
        )
        raise SettingsConflict(f"{error}: {told}; {how}" if told else str(error)) from None


def _as_given(settings: object) -> dict[str, str]:
    shown: TopicBody | SubscriptionBody
    if isinstance(settings, TopicSettings):
        shown = show_topic_settings(settings)
    elif isinstance(settings, SubscriptionSettings):
        shown = show_subscription_settings(settings)
    else:
        return {}
    fields = msgspec.to_builtins(shown)
    return {name: msgspec.json.encode(value).decode() for name, value in fields.items()}
