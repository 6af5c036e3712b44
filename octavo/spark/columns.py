"""The columns of a topic in Spark. Names and types are as in Spark's Kafka source, so that queries
can move over. Without Arrow (arrow.py), which Spark's planners do not need."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from octavo.spark.options import InvalidOption, SourceOptions

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
PLAIN: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
HEADERS: dict[str, DataType] = {"headers": _HEADERS}
METADATA: dict[str, DataType] = {
    "ledger": LongType(),
    "entry": LongType(),
    "index": IntegerType(),
    "producer": LongType(),
    "epoch": IntegerType(),
    "sequence": LongType(),
}
"""Where a message is stored, and its producer's sequence; null if it was not idempotent."""
AS_STORED: dict[str, DataType] = {"timestampMillis": LongType()}
"""Columns only by request: the stored time, also if it is outside the calendar."""
EVERY = {**PLAIN, **HEADERS, **METADATA, **AS_STORED}


def schema_of(options: SourceOptions) -> StructType:
    """Return the columns of a query that gives no schema. Raises `InvalidOption`."""
    if options.columns is not None:
        return _struct(options.columns, "option columns names")
    names = list(PLAIN)
    if options.headers:
        names += HEADERS
    if options.metadata:
        names += METADATA
    return _struct(tuple(names), "")


def _struct(names: tuple[str, ...], what: str) -> StructType:
    unknown = [name for name in names if name not in EVERY]
    if unknown:
        raise InvalidOption(f"{what} {', '.join(unknown)}; the columns are {', '.join(EVERY)}")
    return StructType([StructField(name, EVERY[name]) for name in names])


def checked_schema(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the schema's column names. Raises `InvalidOption` for a wrong name or type."""
    _struct(tuple(schema.names), "the schema names")
    if options.read_from == "broker" and "entry" in schema.names:
        raise InvalidOption(
            "column entry cannot be read with readFrom=broker, which does not know it: leave out "
            "this column"
        )
    for field in schema.fields:
        if field.dataType != EVERY[field.name]:
            raise InvalidOption(
                f"the schema gives column {field.name} the type {field.dataType.simpleString()}; "
                f"it must be {EVERY[field.name].simpleString()}"
            )
    return tuple(schema.names)


_OPTIONS = "octavo.options"
"""The key of a catalog table's options in the metadata of its first column."""


def with_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a catalog table that keep its options.

    Spark passes a table's options to the statement that creates it, and not to the queries of the
    table; to these it passes the columns, with their metadata.
    """
    if not options:
        return columns
    first, *rest = columns.fields
    kept = StructField(first.name, first.dataType, first.nullable, {_OPTIONS: dict(options)})
    return StructType([kept, *rest])


def options_in(columns: StructType) -> dict[str, str]:
    """Return the options that the columns of a catalog table keep."""
    for field in columns.fields:
        if _OPTIONS in (field.metadata or {}):
            return dict(field.metadata[_OPTIONS])
    return {}
