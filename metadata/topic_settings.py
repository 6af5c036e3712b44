"""Declare each setting of topics and namespaces, once. Pure.

A field and its `Setting` declare name, type, default, unit and bounds. These follow:

    HTTP bodies, OpenAPI   broker/http/api/topic_body.py
    records                metadata/topic_records.py stores a field under its name
    options                cli/policy_options.py
    bounds, precedence     `check_policies`, `TopicSettings`, `effective` below

`tests/unit/metadata/test_topic_settings.py` compares the client's types and the table of
docs/operations.md, "Policies", with them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from octavo.protocol.codes import KafkaCode, OctavoError
from octavo.protocol.names import checked_name

BRIEF = "brief"
"""Marks, in a field's metadata, that the record leaves None out."""
_SETTING = "setting"
OFF = -1
"""No bound, whatever the namespace says: `off`."""
NUMBER_MAX = 2**63 - 1
"""The highest number that a record holds."""
PARTITIONS_MAX = 10_000
BOOKIES_MAX = 64
COMPACTION_AFTER_BYTES = 64 * 2**20
"""The default `after_size` of a `compaction`."""


class InvalidSettings(OctavoError):
    """A setting is wrong, for example more acks than copies (422).

    `setting` is the name in the API, if only one is wrong.
    """

    name = "invalid-settings"
    http_status = 422
    kafka = KafkaCode.INVALID_CONFIG

    def __init__(self, message: str, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


class Unit(enum.Enum):
    """How the API reads and shows a value."""

    TIME = "time"
    """Milliseconds here; seconds, or text with a unit, in the API."""
    SIZE = "size"
    """Bytes; in the API also text with a unit."""
    RATE = "rate"
    NUMBER = "number"
    SHARE = "share"
    WORD = "word"
    """One of `Setting.words`."""
    SWITCH = "switch"
    TEXT = "text"


class Setting(NamedTuple):
    """`path` is its name in the API: `retention.time` is `time` of `retention`."""

    path: str
    unit: Unit
    least: int = 1
    most: int = NUMBER_MAX
    words: tuple[str, ...] = ()
    """The default is first."""
    option: str = ""
    """The option of `octavo topic create`, `topic update` and, for policies, `namespace set`."""
    about: str = ""
    """The help of the option."""

    def check(self, value: int | float, otherwise: str = "") -> None:
        """Raises `InvalidSettings`."""
        if self.least <= value <= self.most:
            return
        is_time = self.unit is Unit.TIME
        least, most = (
            format(one / 1000, ".15g") if is_time else one for one in (self.least, self.most)
        )
        shown = f"{value / 1000:g} s" if is_time else value
        raise InvalidSettings(
            f"{self.path} is {shown}; it must be between {least} and {most}"
            f"{' s' if is_time else ''}{otherwise}",
            self.path,
        )


def setting(default: Any, path: str, unit: Unit, *, brief: bool = False, **more: Any) -> Any:
    return field(default=default, metadata={BRIEF: brief, _SETTING: Setting(path, unit, **more)})


def _policy(path: str, unit: Unit, option: str, about: str, **more: Any) -> Any:
    """Make a policy's field; None means not set."""
    return setting(None, path, unit, brief=True, option=option, about=about, **more)


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies of a topic, or of a namespace for topics that do not set them.

    None: not set; `OFF`: no bound. A policy that neither sets has no bound; of words the first
    holds. A topic stores its retention outside `policies`.
    """

    retention_ms: int | None = _policy(
        "retention.time", Unit.TIME, "--retention-time",
        "How long to keep messages that all subscriptions have acked (7d).", least=0,
    )  # fmt: skip
    retention_bytes: int | None = _policy(
        "retention.size", Unit.SIZE, "--retention-size",
        "How many bytes a partition keeps of such messages (10GB).", least=0,
    )  # fmt: skip
    ttl_ms: int | None = _policy(
        "ttl", Unit.TIME, "--ttl", "A message stored for longer counts as acked."
    )
    backlog_bytes: int | None = _policy(
        "backlog_quota.size", Unit.SIZE, "--backlog-size",
        "Unacked bytes a subscription may have in a partition.",
    )  # fmt: skip
    backlog_age_ms: int | None = _policy(
        "backlog_quota.time", Unit.TIME, "--backlog-time",
        "How old a subscription's oldest unacked message may be.",
    )  # fmt: skip
    backlog_policy: str | None = _policy(
        "backlog_quota.policy", Unit.WORD, "--backlog-policy",
        "Beyond size or time: hold or reject publishers, or evict the oldest.",
        words=("hold", "reject", "evict"),
    )  # fmt: skip
    inactive_ms: int | None = _policy(
        "delete_when_inactive", Unit.TIME, "--delete-when-inactive",
        "Delete a topic that no client has used for this time.",
    )  # fmt: skip
    subscription_expiry_ms: int | None = _policy(
        "subscription_expiry", Unit.TIME, "--subscription-expiry",
        "Delete a subscription that no client has used for this time.",
    )  # fmt: skip
    message_bytes_max: int | None = _policy(
        "message_bytes_max", Unit.SIZE, "--message-bytes-max", "A longer message is refused."
    )
    publish_bytes: int | None = _policy(
        "rates.publish_bytes", Unit.SIZE, "--publish-bytes", "Bytes published a second."
    )
    """This and the following three: at each broker that owns partitions of the topic."""
    publish_messages: int | None = _policy(
        "rates.publish_messages", Unit.RATE, "--publish-messages", "Messages published a second."
    )
    dispatch_bytes: int | None = _policy(
        "rates.dispatch_bytes", Unit.SIZE, "--dispatch-bytes", "Bytes read a second."
    )
    dispatch_messages: int | None = _policy(
        "rates.dispatch_messages", Unit.RATE, "--dispatch-messages", "Messages read a second."
    )
    message_time: str | None = _policy(
        "message_time", Unit.WORD, "--message-time",
        "A message's time: its producer's (create), or when it is stored (append).",
        words=("create", "append"),
    )  # fmt: skip
    durability: str | None = _policy(
        "durability", Unit.WORD, "--durability",
        "Acknowledged once on disk (sync), or written and synced later (deferred).",
        words=("sync", "deferred"),
    )  # fmt: skip
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)


_COUNTS = {
    "partitions": (1, PARTITIONS_MAX),
    "ensemble_size": (3, BOOKIES_MAX),
    "write_quorum": (3, BOOKIES_MAX),
    "ack_quorum": (2, BOOKIES_MAX),
}
"""The default and the highest value."""


def _count(name: str) -> Any:
    default, most = _COUNTS[name]
    return setting(default, name, Unit.NUMBER, most=most)


@dataclass(frozen=True, slots=True)
class AutoCreate:
    """The settings of topics that brokers create when a client publishes to them."""

    partitions: int = _count("partitions")
    ensemble_size: int = _count("ensemble_size")
    write_quorum: int = _count("write_quorum")
    ack_quorum: int = _count("ack_quorum")
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """None means no bound. Raises `InvalidSettings` and `InvalidName`.

    A partition's owner sees the policies that hold (`Topics.settings_of`); elsewhere they are what
    the topic itself says. Equal settings make the same topic; `partitions` may grow later.
    """

    partitions: int = _count("partitions")
    ensemble_size: int = _count("ensemble_size")
    write_quorum: int = _count("write_quorum")
    ack_quorum: int = _count("ack_quorum")
    retention_ms: int | None = None
    retention_bytes: int | None = None
    rollover_bytes: int = setting(256 * 2**20, "rollover.size", Unit.SIZE)
    """A ledger that reaches one of the three bounds is closed."""
    rollover_age_ms: int = setting(4 * 3_600_000, "rollover.time", Unit.TIME)
    rollover_entries: int = setting(50_000, "rollover.entries", Unit.NUMBER)
    encrypted: bool = False
    """Whether new ledgers are encrypted; the namespace decides."""
    policies: Policies = field(default_factory=Policies, metadata={BRIEF: True})
    """All policies except retention, which stands above."""
    compaction_after_bytes: int | None = setting(None, "compaction.after_size", Unit.SIZE, least=0)
    """Compact once this many bytes of closed ledgers are not in the view, and
    `compaction_dirty_ratio` is reached. None: never by itself.
    """
    compaction_dirty_ratio: float = setting(
        0.5, "compaction.dirty_ratio", Unit.SHARE, least=0, most=1
    )
    """The share of messages not in the view, among all that a compaction reads."""
    compaction_tombstones_ms: int = setting(
        24 * 3_600_000, "compaction.tombstones", Unit.TIME, least=0
    )
    """A tombstone stays in the view until its timestamp is older."""
    compaction_delete_raw: bool = setting(False, "compaction.delete_raw", Unit.SWITCH)
    """Remove closed ledgers that the view covers and every subscription has acked."""
    schema_subject: str | None = setting(
        None, "schema.subject", Unit.TEXT, brief=True, about="a subject of /v1/schemas"
    )
    """The subject of the schema, in the topic's namespace."""
    schema_validate: bool = setting(
        False, "schema.validate", Unit.SWITCH, brief=True, about="what does not fit is not stored"
    )
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size <= BOOKIES_MAX:
            raise InvalidSettings(
                f"ensemble_size {self.ensemble_size}, write_quorum {self.write_quorum}, ack_quorum "
                f"{self.ack_quorum}: must be {BOOKIES_MAX} >= ensemble >= write >= ack >= 1"
            )
        for name, one in TOPIC_SETTINGS.items():
            value, may_be_off = getattr(self, name), name in _MAY_BE_OFF
            if one.unit in _AMOUNTS and not (may_be_off and value in (None, OFF)):
                one.check(value, ", off, or null" if may_be_off else "")
        check_policies(self.policies)
        if self.schema_subject is not None:
            checked_name("schema subject", self.schema_subject)
        elif self.schema_validate:
            raise InvalidSettings("schema.validate needs a schema.subject", "schema.validate")

    @property
    def own_policies(self) -> Policies:
        """Return what the topic itself sets, including retention."""
        return replace(
            self.policies, retention_ms=self.retention_ms, retention_bytes=self.retention_bytes
        )

    def under(self, namespace: Policies) -> TopicSettings:
        holds = resolved(self.own_policies, namespace)
        return replace(
            self,
            retention_ms=holds.retention_ms,
            retention_bytes=holds.retention_bytes,
            policies=holds,
        )


def declared(kind: Any) -> dict[str, Setting]:
    """Return the declared settings by field."""
    return {one.name: one.metadata[_SETTING] for one in fields(kind) if _SETTING in one.metadata}


POLICIES: Mapping[str, Setting] = declared(Policies)
"""The settings of policies by field."""
RETENTION = ("retention_ms", "retention_bytes")
"""Policies that a topic stores outside `policies`."""
TOPIC_SETTINGS: Mapping[str, Setting] = {
    one.name: POLICIES[one.name] if one.name in RETENTION else one.metadata[_SETTING]
    for one in fields(TopicSettings)
    if one.name in RETENTION or _SETTING in one.metadata
}
"""A topic's settings by field, without the other policies."""
AUTO_CREATE: Mapping[str, Setting] = declared(AutoCreate)
WORDS = {name: one.words for name, one in POLICIES.items() if one.words}
"""The default is first."""
NAMES = tuple(POLICIES)
_AMOUNTS = (Unit.TIME, Unit.SIZE, Unit.NUMBER, Unit.SHARE)
_MAY_BE_OFF = (*RETENTION, "compaction_after_bytes")
Source = Literal["topic", "namespace", "default"]


class Effective(NamedTuple):
    """`value` is None where there is no bound."""

    value: int | str | None
    source: Source


def check_policies(policies: Policies) -> None:
    """Raise `InvalidSettings`, which names policy, value and bounds."""
    for name, one in POLICIES.items():
        value = getattr(policies, name)
        if value is None or value == OFF:
            continue
        if not one.words:
            one.check(value, ", or off")
        elif value not in one.words:
            raise InvalidSettings(
                f"{one.path} is {value[:60]!r}; it must be one of {', '.join(one.words)}",
                one.path,
            )


def effective(topic: Policies, namespace: Policies) -> dict[str, Effective]:
    """Return what holds for a topic, by policy."""
    found: dict[str, Effective] = {}
    speakers: tuple[tuple[Source, Policies], ...] = (("topic", topic), ("namespace", namespace))
    for name, one in POLICIES.items():
        holds = Effective(one.words[0] if one.words else None, "default")
        for source, policies in speakers:
            if (value := getattr(policies, name)) is not None:
                holds = Effective(None if value == OFF else value, source)
                break
        found[name] = holds
    return found


def resolved(topic: Policies, namespace: Policies) -> Policies:
    """Return all policies: no value is `OFF`, and words are always there."""
    values: dict[str, Any] = {
        name: value for name, (value, _) in effective(topic, namespace).items()
    }
    return replace(topic, **values)
