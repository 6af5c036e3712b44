"""The records of namespaces, topics, partitions and subscriptions (docs/formats/topic_records.md).

An older process keeps and writes back a newer one's unknown keys. A newer format version is
refused. A renamed field keeps its key (`_KEY`).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgpack

from octavo.metadata.store import BadRecord
from octavo.metadata.topic_settings import (
    BRIEF,
    AutoCreate,
    InvalidSettings,
    Policies,
    TopicSettings,
)
from octavo.protocol.append_time import Appended
from octavo.protocol.names import InvalidName

FORMAT_VERSION = 1
_KEY = "key"
"""The stored key in a field's metadata, if it is not the field's name."""
_AS_THEY_ARE = frozenset((int, str, bytes, bool, type(None)))
R = TypeVar("R")


def unsaid() -> Any:
    """Make a field whose default, None, is not written."""
    return field(default=None, metadata={BRIEF: True})


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """`policies` apply to topics that do not set them.

    `encrypted`: topics created in it are. `auto_create` None: they are not created automatically.
    """

    created_ms: int = 0
    encrypted: bool = False
    policies: Policies = field(default_factory=Policies, metadata={BRIEF: True})
    auto_create: AutoCreate | None = field(default=None, metadata={BRIEF: True})
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForkRecord:
    """A fork's origin: the topic, and the offset in each partition.

    Until its partitions' records are `made` it is no topic.
    """

    topic: str
    incarnation: str
    offsets: Mapping[int, int]
    made: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic's settings, its creation, and whether it is being deleted.

    `incarnation` is unique to this creation; older records have none. `guarded`: a record of that
    name exists as long as the topic does (`TopicStore`). `stream`: a durable stream. `letters`: it
    gets subscriptions' dead letters or retries.
    """

    settings: TopicSettings
    created_ms: int = 0
    deleting: bool = False
    incarnation: str = ""
    guarded: bool = False
    fork: ForkRecord | None = None
    stream: bool | None = unsaid()
    letters: bool | None = unsaid()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stands(self) -> bool:
        """Whether the topic is complete, and not being deleted."""
        return not self.deleting and (self.fork is None or self.fork.made)

    @property
    def guard(self) -> str | None:
        """Return the topic's incarnation, if a record exists for it."""
        return self.incarnation if self.guarded else None

    @property
    def identity(self) -> str:
        """Return the incarnation, or in older records the creation time, which never changes."""
        return self.incarnation or f"ms{self.created_ms}"


@dataclass(frozen=True, slots=True)
class OffloadRecord:
    """A closed ledger's copy outside the bookies: `copying`, `offloaded` or `dropped`.

    `url`: its folder during the copy, then the object. `dropped`: the only copy. `since_ms`: of its
    state. `crc` covers the entries, `footer_crc` the object's footer (docs/formats/offload.md).
    `encryption`: of an encrypted ledger's data key.
    """

    uuid: str
    state: str
    url: str
    since_ms: int = 0
    entries: int = 0
    bytes: int = 0
    crc: int = 0
    footer_crc: int = 0
    encryption: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffloadIntent:
    """Exists from before a copy's first byte until its last object is gone: no object is forgotten.

    Objects lie in `folder`; their names begin with `stem`.
    """

    namespace: str
    topic: str
    partition: int
    ledger_id: int
    folder: str
    stem: str
    created_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionLedger:
    """A ledger of a partition's chain. `count` is None while it is open.

    `bulk_loaded`: it came whole, and no producer numbered its messages. `first_ms`, `last_ms`: its
    oldest and newest timestamps. `disorder_ms`: the most by which a batch's newest timestamp is
    lower than an earlier batch's; −1 if unknown: a message may be newer than `last_ms`.
    `aging_since_ms`: messages without a time, or with a future time, arrived before that. `pieces`:
    how many of its first records are pieces of the large message after them; `upload`: the
    publisher's name for it. `appended_ms`: where its append times begin.
    """

    ledger_id: int
    base_offset: int
    count: int | None = None
    bytes: int = 0
    first_ms: int = -1
    last_ms: int = -1
    closed_ms: int | None = None
    bulk_loaded: bool = field(default=False, metadata={_KEY: "spliced"})
    offload: OffloadRecord | None = None
    disorder_ms: int = -1
    aging_since_ms: int | None = None
    shared: bool = False
    cut: int = -1
    pieces: int | None = unsaid()
    upload: str | None = unsaid()
    appended_ms: int | None = unsaid()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def appended(self) -> Appended | None:
        """Return the append times; None if its batches have none."""
        if self.appended_ms is None:
            return None
        return Appended(self.appended_ms, together=self.bulk_loaded)


@dataclass(frozen=True, slots=True)
class CompactedLedger:
    """A ledger of a compacted view: its messages have their own offsets, with gaps.

    `tombstone_ms`: of its oldest tombstone, −1 for none.
    """

    ledger_id: int
    first_offset: int
    last_offset: int
    count: int
    bytes: int
    tombstones: int = 0
    tombstone_ms: int = -1
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetiredLedger:
    """A ledger whose view was replaced at `since_ms`; earlier readers may need it."""

    ledger_id: int
    since_ms: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompactionRecord:
    """A partition's compacted view: the newest message of each key below `horizon`.

    Only `run` may publish the next view. `retired` are ledgers of earlier views that still exist.
    """

    horizon: int = 0
    ledgers: tuple[CompactedLedger, ...] = ()
    published_ms: int = 0
    run: str | None = None
    run_since_ms: int = 0
    retired: tuple[RetiredLedger, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition's ledgers in order, and the ledger of its cursors and producers.

    `trimmed_offset`: the first offset kept. `epoch` counts its owners. `bulk_loads`: the newest
    added batch of each that may be asked for again. `producers_upto`: producers of batches before
    that offset are in the state ledger. `incarnation`: its topic's ("": any topic of that name).
    `deleted`: change it no more: it still names the ledgers to delete.
    """

    ledgers: tuple[PartitionLedger, ...] = ()
    state_ledger: int | None = None
    trimmed_offset: int = 0
    epoch: int = 0
    bulk_loads: Mapping[str, int] = field(default_factory=dict, metadata={_KEY: "transactions"})
    compaction: CompactionRecord | None = None
    incarnation: str = ""
    deleted: bool = False
    producers_upto: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


def partition_start(first_base: int | None, trimmed_to: int) -> int:
    """Return the first offset left. Spark, which reads the record by itself, uses the same rule."""
    return trimmed_to if first_base is None else max(first_base, trimmed_to)


def partition_end(last_end: int | None, trimmed_to: int) -> int:
    """Return one past the last offset.

    Trimmed offsets existed, even if bookies do not yet say how far an open ledger goes.
    """
    return trimmed_to if last_end is None else max(last_end, trimmed_to)


@dataclass(frozen=True, slots=True)
class BackoffRecord:
    """The wait for redelivery: `first_ms`, then `factor` times as long each time, at most
    `most_ms`.
    """

    first_ms: int
    most_ms: int
    factor: float = 2.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription; its position is in the partitions' state ledgers.

    `start` is `earliest`, `latest` or a decimal offset; `start_offsets` is what that meant at its
    creation, by partition.
    """

    type: str = "exclusive"
    start: str = "latest"
    start_offsets: Mapping[int, int] = field(default_factory=dict)
    ack_timeout_ms: int = 30_000
    max_deliveries: int | None = None
    created_ms: int = 0
    incarnation: str = ""
    retry_backoff: BackoffRecord | None = None
    dead_letter_topic: str = ""
    dead_letter_subscription: str = ""
    consumer_timeout_ms: int = 5_000
    max_unacked: int | None = None
    max_unacked_per_consumer: int | None = None
    filter_headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    filter_key_prefix: str | None = None
    durable: bool = True
    retry_topic: str = ""
    retry_subscription: str = ""
    retry_deliveries: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Referrer:
    """A partition whose record names a shared ledger."""

    namespace: str
    topic: str
    partition: int
    incarnation: str
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """The partitions whose records name, or may name, a shared ledger.

    Without referrers the ledger is being deleted: no partition may name it again.
    """

    referrers: tuple[Referrer, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_record(record: Any) -> bytes:
    packed: bytes = msgpack.packb(_to_map(record) | {"v": FORMAT_VERSION})
    return packed


def decode_record(kind: type[R], what: str, data: bytes) -> R:
    """Decode a record; `what` names it in errors. Raises only `BadRecord`."""
    try:
        fields = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        # TypeError: a map whose key is a list or a map.
        raise BadRecord(f"{what}: not msgpack: {error}") from error
    version = fields.pop("v", None) if isinstance(fields, dict) else None
    if type(version) is not int or version < 1:
        raise BadRecord(f"{what}: it must be a map with a format version `v`")
    if version > FORMAT_VERSION:
        raise BadRecord(
            f"{what}: format version {version}; this Octavo reads up to {FORMAT_VERSION}"
        )
    record: R = _from_map(kind, what, fields)
    return record


class _Stored(NamedTuple):
    name: str
    key: str
    hint: Any
    is_brief: bool
    is_needed: bool


@functools.cache
def _stored(kind: Any) -> tuple[_Stored, ...]:
    """Return all fields except `extra`; cached, because a fork has hundreds of ledgers."""
    hints, missing = typing.get_type_hints(kind, localns={"bytes": int}), dataclasses.MISSING
    return tuple(
        _Stored(
            f.name, f.metadata.get(_KEY, f.name), hints[f.name], BRIEF in f.metadata,
            f.default is missing and f.default_factory is missing,
        )
        for f in dataclasses.fields(kind)
        if f.name != "extra"
    )  # fmt: skip


def _to_map(record: Any) -> dict[str, Any]:
    fields = {}
    kind: Any = type(record)
    for name, key, _, is_brief, _ in _stored(kind):
        value = getattr(record, name)
        if not (is_brief and _says_nothing(value)):
            fields[key] = value if type(value) in _AS_THEY_ARE else _plain(value)
    # An unknown key never replaces a known key.
    return {**record.extra, **fields}


def _says_nothing(value: Any) -> bool:
    if isinstance(value, Policies):
        return value == Policies() and not value.extra
    return value is None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _to_map(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _from_map(kind: Any, what: str, fields: Any) -> Any:
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise BadRecord(f"{what}: needed is a map with text keys")
    values: dict[str, Any] = {}
    extra = dict(fields)
    for name, key, hint, _, is_needed in _stored(kind):
        if key in fields:
            value = extra.pop(key)
            # As `_convert`, but faster.
            plain = type(value) is hint
            values[name] = value if plain else _convert(hint, f"{what}: {key}", value)
        elif is_needed:
            raise BadRecord(f"{what}: {key} is missing")
    try:
        return kind(**values, extra=extra)
    except (InvalidSettings, InvalidName) as error:
        raise BadRecord(f"{what}: {error}") from error


def _convert(hint: Any, what: str, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _convert(args[0], what, value)
    if dataclasses.is_dataclass(hint):
        return _from_map(hint, what, value)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(args[0], what, item) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return {
            _convert(args[0], what, key): _convert(args[1], what, item)
            for key, item in value.items()
        }
    # bool is an int in Python, but not here.
    if origin is None and type(value) is hint:
        return value
    raise BadRecord(f"{what}: {value!r} is not {hint}")
