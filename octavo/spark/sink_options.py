"""The options and columns of the Spark sink, checked; Kafka's names where it has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from octavo.client.types import TopicName
from octavo.protocol.codes import OctavoError
from octavo.protocol.compression import Compression
from octavo.spark.columns import EVERY
from octavo.spark.options import (
    NO_SERVICE,
    SINKS,
    SOURCES,
    InvalidOption,
    OptionReader,
    own_options,
    warn_of,
)

BATCH_BYTES = 2**20
COMMIT_TIMEOUT_MS = 120_000
COMMITS = ("bulk-load", "producer", "auto")
_FORMER_COMMIT = "splice"
"""What `bulk-load` was called in 0.1, understood until 0.3."""
_BYTES: tuple[type[DataType], ...] = (BinaryType, StringType)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": (ArrayType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
    "timestampMillis": (LongType,),
    "origin": (StructType,),
}

_ORIGIN = {"topic": "string", "partition": "int", "offset": "bigint"}
"""The fields of the column that says where a large message was read."""


@dataclass(frozen=True)
class SinkOptions:
    """Where rows go. `bulk_load` None: the stream's query id, or a new one for a batch query.

    `commit`: by ledgers (`bulk-load`), by the idempotent producer, or (`auto`) small batches so.
    """

    service: str
    topic: str | None
    partition: int | None
    bulk_load: str | None
    batch: int
    compression: Compression
    batch_bytes: int
    commit_timeout_ms: int
    commit: str


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a write. Raises `InvalidOption`."""
    read = OptionReader(own_options(given, SINKS, SOURCES, "sink"))
    service = read.text("service")
    if service is None:
        raise InvalidOption(NO_SERVICE)
    bulk_load = read.text("bulkLoadId")
    if bulk_load is None and read.text("bulkLoadBatch") is not None:
        raise InvalidOption(
            "option bulkLoadBatch counts the batches of a bulkLoadId: give that too"
        )
    if bulk_load is not None and streaming:
        raise InvalidOption("option bulkLoadId is for batch queries; a stream has its query id")
    return SinkOptions(
        service=service,
        topic=_topic(read.text("topic")),
        partition=_whole(read, "partition"),
        bulk_load=_checked_id(bulk_load),
        batch=_whole(read, "bulkLoadBatch") or 0,
        compression=_compression(read),
        batch_bytes=min(read.size("batchBytes") or BATCH_BYTES, 4 * 2**20),
        commit_timeout_ms=read.time_ms("commitTimeout", COMMIT_TIMEOUT_MS),
        commit=_commit(read),
    )


def _commit(read: OptionReader) -> str:
    if (read.text("commit") or "").lower() == _FORMER_COMMIT:
        warn_of(f"commit={_FORMER_COMMIT}", "commit=bulk-load")
        return "bulk-load"
    return read.choice("commit", COMMITS, "bulk-load")


def checked_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises `InvalidOption` for a column that is unknown, of a wrong type, or missing.

    What else the source gives (`offset`, `timestampType`, …) is passed over, as Kafka's sink does:
    where a message lies, it is told here.
    """
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None and field.name in EVERY:
            continue
        if kinds is None:
            raise InvalidOption(
                f"column {field.name} is not one of the sink's: {', '.join(_COLUMNS)}; "
                "put what a message holds into value, for example with to_json"
            )
        if not isinstance(field.dataType, kinds):
            names = " or ".join(kind.typeName() for kind in kinds)
            raise InvalidOption(
                f"column {field.name} is {field.dataType.simpleString()}; it must be {names}"
            )
    if "value" not in schema.names:
        raise InvalidOption("the rows have no column value, which is what a message holds")
    if options.topic is None and "topic" not in schema.names:
        raise InvalidOption("neither the option topic nor a column topic says where rows go")
    if "headers" in schema.names:
        _check_headers(schema["headers"].dataType)
    if "origin" in schema.names:
        _check_origin(schema["origin"].dataType)


def _check_headers(kind: DataType) -> None:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType) or element.names != ["key", "value"]:
        raise InvalidOption(
            f"column headers is {kind.simpleString()}; it must be "
            "array<struct<key:string,value:binary>>"
        )


def _check_origin(kind: DataType) -> None:
    assert isinstance(kind, StructType)
    if {field.name: field.dataType.simpleString() for field in kind.fields} != _ORIGIN:
        raise InvalidOption(
            f"column origin is {kind.simpleString()}; it must be struct(topic, partition, offset) "
            "as the source gives these columns"
        )


def _topic(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(TopicName.of(text))
    except OctavoError as error:
        raise InvalidOption(f"option topic: {error}") from error


def _checked_id(text: str | None) -> str | None:
    if text is not None and not (
        len(text) < 250 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()
    ):
        raise InvalidOption(
            f"option bulkLoadId is {text[:80]!r}; it has letters, digits, - and _ only"
        )
    return text


def _whole(read: OptionReader, name: str) -> int | None:
    text = read.text(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidOption(f"option {name} is {text!r}; it is a whole number from 0")
    return int(text)


def _compression(read: OptionReader) -> Compression:
    names = tuple(one.name.lower() for one in Compression)
    return Compression[read.choice("compression", names, "none").upper()]
