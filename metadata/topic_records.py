"""The records of namespaces, topics, partitions and subscriptions (docs/formats/topic_records.md).

A record is a msgpack map from field names to values, with `v`, the version of the format. Unknown
keys are kept and written back, so that a newer process's additions survive a change by an older
process. A record of a newer format version is refused, never guessed at. A renamed field keeps its
key (`_KEY`), so that older records can still be read.
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
"""In a field's metadata: the key it is stored under, if that differs from its name."""
_AS_THEY_ARE = frozenset((int, str, bytes, bool, type(None)))
R = TypeVar("R")


def unsaid() -> Any:
    """Declare a field with default None that is not written when it is None."""
    return field(default=None, metadata={BRIEF: True})


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace and when it was created. `encrypted`: topics created in it are encrypted.

    `policies` apply to topics that do not set them. `auto_create`: None means that topics are not
    created automatically.
    """

    created_ms: int = 0
    encrypted: bool = False
    policies: Policies = field(default_factory=Policies, metadata={BRIEF: True})
    auto_create: AutoCreate | None = field(default=None, metadata={BRIEF: True})
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForkRecord:
    """The origin of a fork: from which topic, and at which offset in each of its partitions.

    `made`: the records of all its partitions exist. Until then it is not a topic yet, and if its
    creator is gone it never becomes a topic.
    """

    topic: str
    incarnation: str
    offsets: Mapping[int, int]
    made: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic: its settings, when it was created, and whether it is being deleted.

    `incarnation` is unique to this creation of the topic; records of older versions have none.
    `guarded`: a record of that name exists as long as the topic does (`TopicStore`); older topics
    are not guarded. `stream`: it was created as a durable stream. `letters`: subscriptions send
    dead letters or retries to it.
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
        """Whether it may be used: it is complete, and not being deleted."""
        return not self.deleting and (self.fork is None or self.fork.made)

    @property
    def guard(self) -> str | None:
        """The incarnation, if a record exists for it."""
        return self.incarnation if self.guarded else None

    @property
    def identity(self) -> str:
        """The incarnation; for a record without one, its creation time, which never changes
        either."""
        return self.incarnation or f"ms{self.created_ms}"


@dataclass(frozen=True, slots=True)
class OffloadRecord:
    """A closed ledger's copy outside the bookies: `copying`, `offloaded` or `dropped`.

    `url` is its folder while it is being copied, then the object. `dropped`: it is the only copy,
    because the bookies' copies are given up. `since_ms`: when it entered its state. `crc` covers
    the entries, `footer_crc` the object's footer (docs/formats/offload.md), `bytes` is its size.
    `encryption`: for an encrypted ledger, what its own record says about its data key.
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
    """Written before the first byte of a copy, removed after the copy's last object, so that no
    object is forgotten.

    `folder` is where the copy's objects lie, `stem` how their names begin.
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

    `bulk_loaded`: it came whole with a bulk load, and no producer numbered its messages. `offload`:
    its copy in an object store, if any. `first_ms` and `last_ms` are its oldest and newest
    timestamps. `disorder_ms`: the most by which a batch's newest timestamp is lower than that of an
    earlier batch; −1 when not all of its batches were checked: then its newest message may be newer
    than `last_ms`. `aging_since_ms`: when a ledger with messages without a time, or with a future
    time, was found closed; those messages arrived before that. `pieces`: the number of its first
    records that are pieces of the large message after them; `upload` is the publisher's name for
    it. `appended_ms`: its messages have append times, which begin there.
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
        """How to read the append times of its batches; None: they have none."""
        if self.appended_ms is None:
            return None
        return Appended(self.appended_ms, together=self.bulk_loaded)


@dataclass(frozen=True, slots=True)
class CompactedLedger:
    """A ledger of a compacted view: messages at their own offsets, with gaps between.

    `tombstone_ms` is the timestamp of its oldest tombstone, −1 when there is none.
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
    """A ledger of a view that was replaced at `since_ms`; readers that began before may need it."""

    ledger_id: int
    since_ms: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompactionRecord:
    """A partition's compacted view: the newest message of each key below `horizon`.

    `run` is the only run that may publish the next view; None: no run is under way. `retired` are
    ledgers of earlier views that still exist.
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
    """A partition: its ledgers in order, and the ledger that holds its cursors and producers.

    `trimmed_offset` is the first offset still kept; `epoch` counts its owners; `bulk_loads` has the
    newest batch of each bulk load that was added and may be asked for again. `producers_upto`: all
    producers of batches before that offset are in the state ledger. `incarnation` belongs to its
    topic ("": to any topic of that name). `deleted`: its topic is being deleted, so it must not be
    changed any more; it still names the ledgers to delete.
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
    """Return the first offset left in a partition, given where its first ledger begins, if any.

    The partition's owner uses this rule, and Spark, which reads the record by itself.
    """
    return trimmed_to if first_base is None else max(first_base, trimmed_to)


def partition_end(last_end: int | None, trimmed_to: int) -> int:
    """Return one past the last offset of a partition, given where its last ledger ends, if any.

    Trimmed offsets existed, even if bookies do not yet say how far an open ledger goes.
    """
    return trimmed_to if last_end is None else max(last_end, trimmed_to)


@dataclass(frozen=True, slots=True)
class BackoffRecord:
    """How long a message waits for its next delivery: `first_ms`, then `factor` times as long each
    time, at most `most_ms`."""

    first_ms: int
    most_ms: int
    factor: float = 2.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription's settings. Its position is in the partitions' state ledgers.

    `start` is `earliest`, `latest` or a decimal offset; `start_offsets` is what that meant for each
    partition when the subscription was created. `incarnation` belongs to its topic.
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
    """A partition of a certain incarnation of a topic, whose record names a shared ledger."""

    namespace: str
    topic: str
    partition: int
    incarnation: str
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """The partitions whose records name a shared ledger, or may name it.

    Without referrers the ledger is being deleted, and no partition may name it again.
    """

    referrers: tuple[Referrer, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_record(record: Any) -> bytes:
    """Encode any of the records above."""
    packed: bytes = msgpack.packb(_to_map(record) | {"v": FORMAT_VERSION})
    return packed


def decode_record(kind: type[R], what: str, data: bytes) -> R:
    """Decode a record of `kind`; `what` names it in errors. Raises only `BadRecord`."""
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
    """A field of a record, and its key in the stored map."""

    name: str
    key: str
    hint: Any
    is_brief: bool
    is_needed: bool


@functools.cache
def _stored(kind: Any) -> tuple[_Stored, ...]:
    """Return all fields except `extra`; cached, because a fork's record has hundreds of ledgers."""
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
    # Known fields win: an unknown key never replaces a known key.
    return {**record.extra, **fields}


def _says_nothing(value: Any) -> bool:
    """Whether to leave the field out; never if it holds additions of a newer version."""
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
            # The same as `_convert`, without its check of the kind of type.
            plain = type(value) is hint
            values[name] = value if plain else _convert(hint, f"{what}: {key}", value)
        elif is_needed:
            raise BadRecord(f"{what}: {key} is missing")
    try:
        return kind(**values, extra=extra)
    except (InvalidSettings, InvalidName) as error:
        raise BadRecord(f"{what}: {error}") from error


def _convert(hint: Any, what: str, value: Any) -> Any:
    """Convert `value` to the field's type; supports only the types that the records use."""
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
