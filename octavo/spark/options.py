"""The options of the Spark source, read and checked: Kafka's names and meanings. Pure.

Spark hands them over as a map of text without regard to case. An unknown name or a bad value is an
error that lists what would be right; nothing is ignored in silence.
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

EARLIEST = -2
LATEST = -1
"""Offsets with a meaning, as in Kafka's JSON."""

PartitionOffsets = Mapping[str, Mapping[int, int]]
"""By topic (`namespace/topic`) and partition: an offset, `EARLIEST`, `LATEST`, or a time in ms."""


class InvalidOption(OctavoError):
    """An option that cannot be. The message says what would be right."""

    name = "invalid-option"


@dataclass(frozen=True)
class Selection:
    """Which topics: exactly one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends: at an offset or a time, for all partitions or by partition."""

    offset: int | None = None
    offsets: PartitionOffsets = field(default_factory=dict)
    time_ms: int | None = None
    times_ms: PartitionOffsets = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions:
    """What a query asks for. Sizes in bytes, times in milliseconds."""

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
    "(zk://host:2181/chroot, file:///path/octavo.db). Of a table in a catalog Spark tells the "
    "options only to who makes it: use CREATE TEMPORARY VIEW, or SELECT … FROM table WITH (…)"
)
SINKS = (
    "service", "topic", "partition", "bulkLoadId", "bulkLoadBatch", "compression", "batchBytes",
    "commitTimeout", "commit",
)  # fmt: skip
FORMER = {"txnId": "bulkLoadId", "txnVersion": "bulkLoadBatch"}
"""Names of 0.1, understood until 0.3."""
_SPARKS_OWN = {"path", "checkpointlocation", "queryname", "serialization.format"}
"""Spark adds these on its own."""
_TABLES = {
    "collation", "comment", "external", "is_managed_location", "location", "owner", "provider",
    "table_type",
}  # fmt: skip
"""These too, of a table in a catalog, beside the person's own properties (`team.name`)."""
_OF_TABLE = "option."
"""Before the name of each option of a table, which Spark gives once so and once plainly."""
_TIME = re.compile(r"([0-9]+)\s*(ms|s|m|h|d)?\Z")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"([0-9]+)\s*(k|m|g|t)?i?b?\Z", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
READ_FROM = ("auto", "bookies", "broker", "offload")
SPLIT_BYTES = 128 * 2**20
TRIGGER_DELAY_MS = 15 * 60_000


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a query. Raises `InvalidOption`."""
    read = OptionReader(own_options(given, SOURCES, SINKS, "source"))
    if read.text("service") is None:
        raise InvalidOption(NO_SERVICE)
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
            "earliest, and nothing else that says where to start"
        )
    if compacted and read_from == "broker":
        raise InvalidOption(
            "option readCompacted=true reads from the bookies: it does not go with readFrom=broker"
        )
    rows_max, rows_min = read.whole("maxOffsetsPerTrigger"), read.whole("minOffsetsPerTrigger")
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise InvalidOption(
            f"option minOffsetsPerTrigger is {rows_min}, above maxOffsetsPerTrigger, {rows_max}"
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


def own_options(
    given: Mapping[str, str], known: tuple[str, ...], others: tuple[str, ...], whose: str
) -> dict[str, str]:
    """Ours among what Spark hands over, by lower-case names. Raises `InvalidOption` for a stranger.

    A table of a catalog is both read and written: there the `others` are passed over.
    """
    options = _by_todays_names({name.lower(): value for name, value in given.items()})
    of_table = {name: value for name, value in options.items() if name.startswith(_OF_TABLE)}
    fine = {name.lower() for name in known} | _SPARKS_OWN
    if of_table:
        # Those of a single query (`WITH (…)`) come plainly, and go before the table's.
        options = {name.removeprefix(_OF_TABLE): one for name, one in of_table.items()} | {
            name: value for name, value in options.items() if name not in of_table
        }
        properties = {name for name in options if "." in name and _OF_TABLE + name not in of_table}
        fine |= _TABLES | {name.lower() for name in others} | properties
    unknown = sorted(name for name in options if name not in fine)
    if unknown:
        raise InvalidOption(
            f"unknown option {', '.join(map(_named, unknown))}; the options of this {whose} are "
            + ", ".join(sorted(known, key=str.lower))
        )
    return options


def _by_todays_names(options: Mapping[str, str]) -> dict[str, str]:
    """Also those that Spark gives as a table's. Raises `InvalidOption` when both are given."""
    found = dict(options)
    for was, now in FORMER.items():
        for of_table in ("", _OF_TABLE):
            value = found.pop(of_table + was.lower(), None)
            if value is None:
                continue
            if of_table + now.lower() in found:
                raise InvalidOption(f"option {was} is the former name of {now}: give one of them")
            found[of_table + now.lower()] = value
            warn_of(was, now)
    return found


def warn_of(was: str, now: str) -> None:
    """Tell whoever writes the job, who reads its standard error."""
    warnings.warn(
        f"option {was} is called {now} now; until 0.3 both are understood",
        FutureWarning,
        stacklevel=2,
    )


def _named(unknown: str) -> str:
    """With what was meant, if that can be guessed: Spark gives names in lower case."""
    every = {name.lower(): name for name in (*SOURCES, *SINKS)}
    close = difflib.get_close_matches(unknown, every, n=1, cutoff=0.8)
    return f"{unknown} (meant: {every[close[0]]}?)" if close else unknown


def _selection(read: OptionReader) -> Selection:
    ways = ("subscribe", "subscribePattern", "assign")
    given = [name for name in ways if read.text(name) is not None]
    if len(given) != 1:
        raise InvalidOption(
            f"exactly one of {', '.join(ways)} says which topics to read; "
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
            raise InvalidOption('option assign is JSON such as {"public/flights": [0, 1]}')
        assigned[_topic("assign", topic)] = tuple(sorted(set(partitions)))
    return Selection(partitions=assigned)


def _bound(read: OptionReader, which: str, default: int) -> Bound:
    """Kafka's precedence: one time for all, times by partition, offsets."""
    if (time := read.text(f"{which}Timestamp")) is not None:
        if not time.isdigit():
            raise InvalidOption(
                f"option {which}Timestamp is {time!r}; it is milliseconds since 1970 (UTC)"
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
    return Bound(offset=default, offsets=read.by_partition(f"{which}Offsets", minimum=EARLIEST))


def _topic(option: str, text: str) -> str:
    try:
        return str(TopicName.of(text))
    except OctavoError as error:
        raise InvalidOption(f"option {option}: {error}") from error


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class OptionReader:
    """Typed looks at the map of texts. Names as documented; the map's are lower case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def text(self, name: str) -> str | None:
        """As it stands, without blanks around it; None when it is absent or empty."""
        value = self._options.get(name.lower())
        return None if value is None or not value.strip() else value.strip()

    def names(self, name: str) -> tuple[str, ...] | None:
        """Names with commas between."""
        text = self.text(name)
        if text is None:
            return None
        found = tuple(one.strip() for one in text.split(","))
        if not all(found):
            raise InvalidOption(f"option {name} is {text!r}; it is names with commas between")
        return found

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """One of a few words."""
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise InvalidOption(f"option {name} is {text!r}; it is one of {', '.join(choices)}")
        return text

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def whole(self, name: str) -> int | None:
        """A whole number from 1."""
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise InvalidOption(f"option {name} is {text!r}; it is a whole number from 1")
        return int(text)

    def time_ms(self, name: str, default: int) -> int:
        """A time with a unit."""
        text = self.text(name)
        if text is None:
            return default
        found = _TIME.match(text)
        if found is None:
            raise InvalidOption(
                f"option {name} is {text!r}; it is a time such as 500ms, 30s or 15m"
            )
        return int(found[1]) * _UNIT_MS[found[2] or "ms"]

    def size(self, name: str) -> int | None:
        """A size in bytes, with a unit."""
        text = self.text(name)
        if text is None:
            return None
        found = _SIZE.match(text)
        if found is None or int(found[1]) < 1:
            raise InvalidOption(f"option {name} is {text!r}; it is a size such as 65536, 64k or 1g")
        return int(found[1]) * _UNIT_BYTES[(found[2] or "").lower()]

    def json_object(self, name: str) -> dict[str, Any]:
        """A JSON object that is not empty."""
        text = self.text(name) or ""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidOption(f"option {name} is no JSON: {error}") from error
        if not isinstance(found, dict) or not found:
            raise InvalidOption(f"option {name} is a JSON object by topic, got {text[:100]}")
        return found

    def by_partition(self, name: str, *, minimum: int) -> dict[str, dict[int, int]]:
        """Numbers by topic and partition, in Kafka's shape."""
        found: dict[str, dict[int, int]] = {}
        for topic, partitions in self.json_object(name).items():
            try:
                good = {int(number): partitions[number] for number in partitions}
            except (TypeError, ValueError):
                good = {-1: 0}
            whole = [isinstance(one, int) and one >= minimum for one in good.values()]
            if not good or not all(whole) or min(good) < 0:
                raise InvalidOption(
                    f'option {name} is JSON such as {{"public/flights": {{"0": 23, "1": 42}}}}'
                    + ("; -2 is earliest, -1 latest" if minimum < 0 else ", milliseconds each")
                )
            found[_topic(name, topic)] = good
        return found
