"""The options and columns of the Spark sink, checked. Names as in Kafka's sink. Pure."""

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
"""The name of `bulk-load` in 0.1, accepted until 0.3."""
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
"""The column with the place where a large message was read."""


@dataclass(frozen=True)
class SinkOptions:
    """`bulk_load` None: the query id of a stream, or a new id for a batch.

    `commit`: with ledgers (`bulk-load`), with the idempotent producer, or `auto`: the producer for
    small batches, ledgers for others.
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
    read = OptionReader(own_options(given, SINKS, SOURCES, "sink"))
    service = read.text("service")
    if service is None:
        raise InvalidOption(NO_SERVICE)
    bulk_load = read.text("bulkLoadId")
    if bulk_load is None and read.text("bulkLoadBatch") is not None:
        raise InvalidOption(
            "option bulkLoadBatch counts the batches of a bulkLoadId: give bulkLoadId too"
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
    """Raise `InvalidOption` for a column that is unknown, missing, or of a wrong type.

    The source's other columns (`offset`, …) are ignored, as in Kafka's sink.
    """
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None and field.name in EVERY:
            continue
        if kinds is None:
            raise InvalidOption(
                f"unknown column {field.name}: the sink knows {', '.join(_COLUMNS)}; "
                "put a message's content into value, for example with to_json"
            )
        if not isinstance(field.dataType, kinds):
            names = " or ".join(kind.typeName() for kind in kinds)
            raise InvalidOption(
                f"column {field.name} is {field.dataType.simpleString()}; it must be {names}"
            )
    if "value" not in schema.names:
        raise InvalidOption("the rows have no column value, which holds a message's content")
    if options.topic is None and "topic" not in schema.names:
        raise InvalidOption("give an option topic or a column topic: it says where rows go")
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
            "with the types that the source gives these columns"
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
            f"option bulkLoadId is {text[:80]!r}; use only letters, digits, - and _"
        )
    return text


def _whole(read: OptionReader, name: str) -> int | None:
    text = read.text(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidOption(f"option {name} is {text!r}; give a whole number, 0 or more")
    return int(text)


def _compression(read: OptionReader) -> Compression:
    names = tuple(one.name.lower() for one in Compression)
    return Compression[read.choice("compression", names, "none").upper()]
