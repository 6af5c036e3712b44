"""The columns of a topic's table, and the conversion of stored messages into them. Pure.

    partition, offset, timestamp, timestamp_ms, key, headers, and the value: `value`, or its fields

`timestamp_ms` has the time of a message outside the calendar (years 1970 to 9999), whose
`timestamp` is null; else it is null. A field with such a name becomes `value_NAME`.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from octavo.pipeline.json_schema import BadSchema, Kind, kind_of, text_of
from octavo.protocol.large import LARGE_HEADER
from octavo.protocol.limits import TIMESTAMP_MS_MAX
from octavo.spark.batches import StoredBatch

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PLACES = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("headers", _HEADERS),
    ]
)
VALUE = pa.field("value", pa.binary())
_MS = pa.timestamp("ms", tz="UTC")
COLUMNS_MAX = 1_000
"""Including columns inside of structs."""
_IS_LARGE = "a large message: its body is not in a column"


class Misfit(NamedTuple):
    partition: int
    offset: int
    reason: str
    value: bytes


class Columns:
    """`kind` None: the value is one column of bytes."""

    def __init__(self, kind: Kind | None, *, keep_value: bool = False) -> None:
        self._kind = kind
        fields = list(PLACES)
        if kind is None or keep_value:
            fields.append(VALUE)
        self.has_value = kind is None or keep_value
        self._of: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]] = []
        if kind is not None:
            self._decode = msgspec.json.Decoder(kind.checked).decode
            names = {one.name.casefold() for one in fields}
            self._read(kind, names, fields)
        self.arrow = pa.schema(fields)
        if sum(_leaves(one.type) for one in fields) > COLUMNS_MAX:
            raise BadSchema(f"the messages have more than {COLUMNS_MAX} fields, each a column")

    def _read(self, kind: Kind, names: set[str], fields: list[pa.Field]) -> None:
        held = dict(
            zip(kind.checked.__struct_encode_fields__, kind.checked.__struct_fields__, strict=True)
        )
        empty = dict.fromkeys(held.values())
        self._nothing = SimpleNamespace(**empty)
        for one in kind.column or ():
            name = column_name(one.name)
            if name.casefold() in names:
                name = f"value_{name}"
            if name.casefold() in names:
                raise BadSchema(f"two fields would be the column {name}: rename one")
            names.add(name.casefold())
            kept = safe_type(one.type)
            fields.append(pa.field(name, kept))
            form: Callable[[Any], Any] | None = None
            if pa.types.is_nested(kept):
                form = nested
            elif pa.types.is_string(kept):
                form = _text
            self._of.append((name, operator.attrgetter(held[one.name]), form))

    def decoded(self, value: bytes) -> Any:
        return self._decode(value)

    def fits(self, value: bytes) -> bool:
        try:
            self._decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return True

    def values(self, rows: list[Any]) -> list[pa.Array]:
        whole = [self._nothing if row is None else row for row in rows]
        arrays = []
        for name, get, form in self._of:
            found: Any = map(get, whole)
            if form is not None:
                found = map(form, found)
            arrays.append(pa.array(list(found), self.arrow.field(name).type))
        return arrays


def column_name(field: str) -> str:
    """Return a column's name; tables use `.` for fields of structs, and need a name."""
    return field.replace(".", "_") or "value_"


def safe_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        names = [column_name(one.name).casefold() for one in kind]
        if len(set(names)) < len(names):
            raise BadSchema(f"two fields of {kind} would be the same column: rename one")
        return pa.struct([pa.field(column_name(one.name), safe_type(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(safe_type(kind.value_type))
    return kind


def nested(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {column_name(name): nested(getattr(value, held)) for name, held in names}
    if isinstance(value, list):
        return [nested(one) for one in value]
    return text_of(value) if isinstance(value, msgspec.Raw) else value


def _text(value: Any) -> Any:
    return text_of(value) if isinstance(value, msgspec.Raw) else value


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(_leaves(one.type) for one in kind)
    return _leaves(kind.value_type) if pa.types.is_list(kind) else 1


class Rows:
    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._schema = columns.arrow
        self._clear()
        self.odd_times = 0
        self.newest_ms = -1
        self.misfits: list[Misfit] = []
        self.misfit_bytes = 0

    def _clear(self) -> None:
        self._partitions: list[int] = []
        self._offsets: list[int] = []
        self._records: list[Any] = []
        self._decoded: list[Any] = []

    @property
    def pending(self) -> int:
        return len(self._records)

    def add(self, batch: StoredBatch, start: int, end: int) -> None:
        """Add the batch's messages from `start` to before `end`: it may reach beyond on both
        sides.
        """
        offsets, records = batch.numbered()
        first, last = bisect_left(offsets, start), bisect_left(offsets, end)
        offsets, records = offsets[first:last], records[first:last]
        if self._columns._kind is not None:
            offsets, records = self._fitting(batch.partition, offsets, records)
        self._offsets.extend(offsets)
        self._records.extend(records)
        self._partitions.extend([batch.partition] * len(records))

    def _fitting(self, partition: int, offsets: Any, records: list[Any]) -> tuple[Any, list[Any]]:
        decode = self._columns.decoded
        decoded: list[Any] = []
        bad: list[int] = []
        for number, record in enumerate(records):
            value = record.value
            try:
                decoded.append(None if value is None else decode(value))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                bad.append(number)
                reason = _IS_LARGE if is_large(record) else str(error)
                self.misfits.append(Misfit(partition, offsets[number], reason, value))
                self.misfit_bytes += len(value)
        self._decoded += decoded
        if bad:
            gone = set(bad)
            offsets = [one for number, one in enumerate(offsets) if number not in gone]
            records = [one for number, one in enumerate(records) if number not in gone]
        return offsets, records

    def take(self) -> pa.RecordBatch:
        records = self._records
        times = [one.timestamp for one in records]
        odd = [None if 0 <= time <= TIMESTAMP_MS_MAX else time for time in times]
        count = len(odd) - odd.count(None)
        if count:
            self.odd_times += count
            times = [time if 0 <= time <= TIMESTAMP_MS_MAX else None for time in times]
        self.newest_ms = max(self.newest_ms, max((t for t in times if t is not None), default=-1))
        headers = [one.headers for one in records]
        arrays = [
            pa.array(self._partitions, pa.int32()),
            pa.array(self._offsets, pa.int64()),
            pa.array(times, _MS).cast(pa.timestamp("us", tz="UTC")),
            pa.array(odd, pa.int64()) if count else pa.nulls(len(odd), pa.int64()),
            pa.array([one.key for one in records], pa.binary()),
            _headers(headers),
        ]
        if self._columns.has_value:
            arrays.append(pa.array([one.value for one in records], pa.binary()))
        if self._columns._kind is not None:
            arrays += self._columns.values(self._decoded)
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _headers(every: list[Any]) -> pa.Array:
    if not any(every):
        return pa.nulls(len(every), _HEADERS)
    return pa.array(
        [[{"key": key, "value": value} for key, value in headers] or None for headers in every],
        _HEADERS,
    )


def is_large(record: Any) -> bool:
    return any(key == LARGE_HEADER for key, _ in record.headers)


def columns_of_schema(schema: Mapping[str, Any] | None, *, keep_value: bool = False) -> Columns:
    if schema is None:
        return Columns(None)
    kind = kind_of(schema)
    if schema.get("type") != "object" or kind.column is None:
        raise BadSchema('a message schema must be {"type": "object", "properties": {…}}')
    return Columns(kind, keep_value=keep_value)
