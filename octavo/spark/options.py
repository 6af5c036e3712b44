"""The options of the Spark source, parsed and checked; names and meanings as in Kafka's. Pure.

An unknown name or a bad value is an error; no option is silently ignored.
"""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.client.types import TopicName
from octavo.protocol.codes import OctavoError
from octavo.spark.strange_options import about

EARLIEST = -2
LATEST = -1
"""The latest offset, as in Kafka's JSON."""

INCARNATION = "incarnation"
"""A topic's incarnation has this key among its partitions, in the offsets that Spark keeps."""

PartitionOffsets = Mapping[str, Mapping[int, int]]
"""By topic (`namespace/topic`) and partition: an offset, `EARLIEST`, `LATEST`, or a time in ms."""


class InvalidOption(OctavoError):
    name = "invalid-option"


@dataclass(frozen=True)
class Selection:
    """Exactly one field is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """An offset or a time, for all partitions or by partition."""

    offset: int | None = None
    offsets: PartitionOffsets = field(default_factory=dict)
    time_ms: int | None = None
    times_ms: PartitionOffsets = field(default_factory=dict)
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """The incarnations of topics that the offsets belong to, as a stream's checkpoint has them."""


@dataclass(frozen=True)
class SourceOptions:
    """Sizes are in bytes, times in milliseconds."""

    service: str
    selection: Selection
    starting: Bound
    ending: Bound
    latest_if_late: bool
    fail_on_data_loss: bool
    rows_per_trigger_max: int | None
    rows_per_trigger_min: int | None
    trigger_delay_ms_max: int
    bytes_per_trigger_max: int | None
    splits_min: int | None
    rows_per_split_max: int | None
    split_bytes_max: int
    columns: tuple[str, ...] | None
    headers: bool
    metadata: bool
    read_from: str
    compacted: bool = False


SOURCES = (
    "service", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
    "minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition", "columns",
    "includeHeaders", "includeMetadata", "readFrom", "readCompacted",
)  # fmt: skip
NO_SERVICE = (
    "option service is missing: the URL of a broker (http://127.0.0.1:8080) or of the metadata "
    "(zk://host:2181/chroot, file:///path/octavo.db). A catalog table keeps its options with the "
    "columns that Octavo gives it: create it without naming columns, or use CREATE TEMPORARY "
    "VIEW, or SELECT … FROM table WITH (…)"
)
SINKS = (
    "service", "topic", "partition", "bulkLoadId", "bulkLoadBatch", "compression", "batchBytes",
    "commitTimeout", "commit",
)  # fmt: skip
LIMITS_SINCE = "4.2"
"""The first Spark that passes limits to a Python source."""
_LIMITS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
FORMER = {"txnId": "bulkLoadId", "txnVersion": "bulkLoadBatch"}
"""Names of 0.1, accepted until 0.3."""
_SPARKS_OWN = {"path", "checkpointlocation", "queryname", "serialization.format"}
"""Spark adds these by itself."""
_TABLES = {
    "collation", "comment", "external", "is_managed_location", "location", "owner", "provider",
    "table_type",
}  # fmt: skip
"""Allowed for a catalog table, besides the user's properties (`team.name`)."""
_OF_TABLE = "option."
"""The prefix of a table's options. Spark passes each option with the prefix and without."""
_TIME = re.compile(r"([0-9]+)\s*(ms|s|m|h|d)?\Z")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"([0-9]+)\s*(k|m|g|t)?i?b?\Z", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
READ_FROM = ("auto", "bookies", "broker", "offload")
SPLIT_BYTES = 128 * 2**20
TRIGGER_DELAY_MS = 15 * 60_000


def source_options(
    given: Mapping[str, str], *, streaming: bool, unlimited: str | None = None
) -> SourceOptions:
    """Read a source's options; `unlimited`: the version of a Spark that passes no limits."""
    read = OptionReader(own_options(given, SOURCES, SINKS, "source"))
    if read.text("service") is None:
        raise InvalidOption(NO_SERVICE)
    if unlimited is not None:
        _refuse_limits(read, unlimited)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if read.text(name) is not None:
                raise InvalidOption(f"option {name} is for batch queries; a stream has no end")
    read_from = read.choice("readFrom", READ_FROM, "auto")
    if read_from == "broker" and not (read.text("service") or "").startswith("http"):
        raise InvalidOption(
            "option readFrom=broker needs a broker's URL as service (http://127.0.0.1:8080), "
            f"not {read.text('service')}"
        )
    starting = _bound(read, "starting", LATEST if streaming else EARLIEST)
    compacted = read.flag("readCompacted", default=False)
    if compacted and starting != Bound(offset=EARLIEST):
        raise InvalidOption(
            "option readCompacted=true reads each topic from its beginning: set startingOffsets to "
            "earliest, and no other starting option"
        )
    if compacted and read_from == "broker":
        raise InvalidOption(
            "option readCompacted=true reads from the bookies: do not set readFrom=broker"
        )
    rows_max, rows_min = read.whole("maxOffsetsPerTrigger"), read.whole("minOffsetsPerTrigger")
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise InvalidOption(
            f"option minOffsetsPerTrigger ({rows_min}) is above maxOffsetsPerTrigger ({rows_max})"
        )
    return SourceOptions(
        service=read.text("service") or "",
        selection=_selection(read),
        starting=starting,
        ending=_bound(read, "ending", LATEST),
        latest_if_late=read.choice(
            "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
        )
        == "latest",
        fail_on_data_loss=read.flag("failOnDataLoss", default=True),
        rows_per_trigger_max=rows_max,
        rows_per_trigger_min=rows_min,
        trigger_delay_ms_max=read.time_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
        bytes_per_trigger_max=read.size("maxBytesPerTrigger"),
        splits_min=read.whole("minPartitions"),
        rows_per_split_max=read.whole("maxRecordsPerPartition"),
        split_bytes_max=read.size("maxBytesPerPartition") or SPLIT_BYTES,
        columns=read.names("columns"),
        headers=read.flag("includeHeaders", default=False),
        metadata=read.flag("includeMetadata", default=False),
        read_from=read_from,
        compacted=compacted,
    )


def _refuse_limits(read: OptionReader, spark: str) -> None:
    for name in _LIMITS:
        if read.text(name) is not None:
            raise InvalidOption(
                f"option {name} needs Spark {LIMITS_SINCE} or newer. This is Spark {spark}, which "
                "lets a micro-batch read everything that is there: leave the option out, or read "
                "ranges with startingOffsets and endingOffsets in a batch query"
            )


def own_options(
    given: Mapping[str, str], known: tuple[str, ...], others: tuple[str, ...], whose: str
) -> dict[str, str]:
    """Return our options, by lower-case name. Raises `InvalidOption` for an unknown name.

    A catalog table is both read and written: for it the `others` are ignored.
    """
    options = _by_todays_names({name.lower(): value for name, value in given.items()})
    of_table = {name: value for name, value in options.items() if name.startswith(_OF_TABLE)}
    fine = {name.lower() for name in known} | _SPARKS_OWN
    if of_table:
        # Options of a single query (`WITH (…)`) have no prefix and override the table's.
        options = {name.removeprefix(_OF_TABLE): one for name, one in of_table.items()} | {
            name: value for name, value in options.items() if name not in of_table
        }
        properties = {name for name in options if "." in name and _OF_TABLE + name not in of_table}
        fine |= _TABLES | {name.lower() for name in others} | properties
    unknown = sorted(name for name in options if name not in fine)
    if unknown:
        raise InvalidOption(
            f"unknown option {', '.join(_named(one, others, whose) for one in unknown)}; "
            f"the options of this {whose} are " + ", ".join(sorted(known, key=str.lower))
        )
    return options


def table_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a created catalog table; empty for any other statement."""
    lower = {name.lower(): value for name, value in given.items()}
    return {
        name.removeprefix(_OF_TABLE): value
        for name, value in sorted(lower.items())
        if name.startswith(_OF_TABLE) and name != f"{_OF_TABLE}serialization.format"
    }


def _by_todays_names(options: Mapping[str, str]) -> dict[str, str]:
    found = dict(options)
    for was, now in FORMER.items():
        for of_table in ("", _OF_TABLE):
            value = found.pop(of_table + was.lower(), None)
            if value is None:
                continue
            if of_table + now.lower() in found:
                raise InvalidOption(f"option {was} is the old name of {now}: give only {now}")
            found[of_table + now.lower()] = value
            warn_of(was, now)
    return found


def warn_of(was: str, now: str) -> None:
    warnings.warn(
        f"option {was} is now called {now}; the old name works until 0.3",
        FutureWarning,
        stacklevel=2,
    )


def warn_if_empty(options: SourceOptions) -> None:
    if options.starting == Bound(offset=LATEST):
        warnings.warn(
            "startingOffsets=latest in a batch query reads nothing: it ends at the latest offsets "
            "too. Use earliest, an offset, or startingTimestamp; or readStream for new messages",
            UserWarning,
            stacklevel=2,
        )


def _named(unknown: str, others: tuple[str, ...], whose: str) -> str:
    if (said := about(unknown, others, whose)) is not None:
        return f"{unknown} ({said})"
    every = {name.lower(): name for name in (*SOURCES, *SINKS)}
    close = difflib.get_close_matches(unknown, every, n=1, cutoff=0.8)
    return f"{unknown} (meant: {every[close[0]]}?)" if close else unknown


def _selection(read: OptionReader) -> Selection:
    ways = ("subscribe", "subscribePattern", "assign")
    given = [name for name in ways if read.text(name) is not None]
    if len(given) != 1:
        raise InvalidOption(
            f"give exactly one of {', '.join(ways)} to select topics; "
            f"given: {', '.join(given) or 'none'}"
        )
    if given == ["subscribe"]:
        return Selection(
            topics=tuple(_topic("subscribe", one) for one in read.names("subscribe") or ())
        )
    if given == ["subscribePattern"]:
        pattern = read.text("subscribePattern") or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidOption(f"option subscribePattern {pattern!r}: {error}") from error
        return Selection(pattern=pattern)
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in read.json_object("assign").items():
        good = isinstance(partitions, list) and all(_is_whole(one) for one in partitions)
        if not good or not partitions:
            raise InvalidOption('option assign must be JSON such as {"public/flights": [0, 1]}')
        assigned[_topic("assign", topic)] = tuple(sorted(set(partitions)))
    return Selection(partitions=assigned)


def _bound(read: OptionReader, which: str, default: int) -> Bound:
    """Read a bound; as in Kafka, a time for all comes before times by partition, then offsets."""
    if (time := read.text(f"{which}Timestamp")) is not None:
        if not time.isdigit():
            raise InvalidOption(
                f"option {which}Timestamp is {time!r}; give milliseconds since 1970 (UTC)"
            )
        return Bound(time_ms=int(time))
    if read.text(f"{which}OffsetsByTimestamp") is not None:
        return Bound(times_ms=read.by_partition(f"{which}OffsetsByTimestamp", minimum=0))
    text = read.text(f"{which}Offsets")
    if text is None:
        return Bound(offset=default)
    named = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in named:
        offset = named[text.strip().lower()]
        if which == "ending" and offset == EARLIEST:
            raise InvalidOption("option endingOffsets cannot be earliest: nothing would be read")
        return Bound(offset=offset)
    name = f"{which}Offsets"
    offsets = read.by_partition(name, minimum=EARLIEST)
    return Bound(offset=default, offsets=offsets, incarnations=read.incarnations(name))


def _topic(option: str, text: str) -> str:
    try:
        return str(TopicName.of(text))
    except OctavoError as error:
        raise InvalidOption(f"option {option}: {error}") from error


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class OptionReader:
    """Takes documented names; the map has lower-case names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def text(self, name: str) -> str | None:
        value = self._options.get(name.lower())
        return None if value is None or not value.strip() else value.strip()

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self.text(name)
        if text is None:
            return None
        found = tuple(one.strip() for one in text.split(","))
        if not all(found):
            raise InvalidOption(f"option {name} is {text!r}; give names separated by commas")
        return found

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise InvalidOption(f"option {name} is {text!r}; use one of {', '.join(choices)}")
        return text

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def whole(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise InvalidOption(f"option {name} is {text!r}; give a whole number, 1 or more")
        return int(text)

    def time_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        found = _TIME.match(text)
        if found is None:
            raise InvalidOption(f"option {name} is {text!r}; give a time such as 500ms, 30s or 15m")
        return int(found[1]) * _UNIT_MS[found[2] or "ms"]

    def size(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        found = _SIZE.match(text)
        if found is None or int(found[1]) < 1:
            raise InvalidOption(f"option {name} is {text!r}; give a size such as 65536, 64k or 1g")
        return int(found[1]) * _UNIT_BYTES[(found[2] or "").lower()]

    def json_object(self, name: str) -> dict[str, Any]:
        text = self.text(name) or ""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidOption(f"option {name} is not JSON: {error}") from error
        if not isinstance(found, dict) or not found:
            raise InvalidOption(f"option {name} must be a JSON object by topic, got {text[:100]}")
        return found

    def incarnations(self, name: str) -> dict[str, str]:
        return {
            _topic(name, topic): str(partitions[INCARNATION])
            for topic, partitions in self.json_object(name).items()
            if INCARNATION in partitions
        }

    def by_partition(self, name: str, *, minimum: int) -> dict[str, dict[int, int]]:
        """Return numbers by topic and partition, from Kafka's format."""
        found: dict[str, dict[int, int]] = {}
        for topic, partitions in self.json_object(name).items():
            try:
                good = {int(n): partitions[n] for n in partitions if n != INCARNATION}
            except (TypeError, ValueError):
                good = {-1: 0}
            whole = [isinstance(one, int) and one >= minimum for one in good.values()]
            if not good or not all(whole) or min(good) < 0:
                raise InvalidOption(
                    f'option {name} must be JSON such as {{"public/flights": {{"0": 23, "1": 42}}}}'
                    + ("; -2 is earliest, -1 latest" if minimum < 0 else ", in milliseconds")
                )
            found[_topic(name, topic)] = good
        return found
