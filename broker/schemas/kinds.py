"""JSON Schema and Avro by their libraries: read a schema, check messages, compare schemas.

The libraries are optional (`octavo[schemas]`). A reference to another document is refused, never
fetched; patterns take linear time. Other calls are unbounded and hold the interpreter lock, so they
run in separate processes (engine.py), except `quick`.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from octavo.broker.errors import InvalidSchema
from octavo.broker.schemas.avro import Shape, TooManyPairs
from octavo.broker.schemas.avro import mistake as avro_mistake
from octavo.broker.schemas.avro import unreadable as avro_unreadable
from octavo.broker.schemas.json_cost import PARTS_MAX, cost_of

TYPES = ("json", "avro")
SCHEMA_BYTES_MAX = 64 * 1024
SHOWN_CHARS = 300
QUICK_CHARS = 16 * 1024
QUICK_PARTS = 2_000
"""A larger schema is compiled in a worker; this many takes two milliseconds."""
STEP_NS = 26
"""Comparing a part of a value with a part of a schema takes about this."""
_AVRO_STEPS = 40
"""Per part of an Avro value, for which the library makes an object: about 1 µs."""


class Schema(Protocol):
    @property
    def text(self) -> str: ...

    def misfit(self, value: bytes) -> str | None: ...

    def unreadable(self, writer: Any) -> Sequence[str]: ...


def parsed(kind: str, given: Any) -> Schema:
    if kind not in TYPES:
        raise InvalidSchema(f"type is {kind[:40]!r}; it must be {' or '.join(TYPES)}")
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)  # rejects NaN and unpaired surrogates
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise InvalidSchema(f"the schema is not JSON: {error}") from None
    text = json.dumps(given, separators=(",", ":"), ensure_ascii=False, sort_keys=kind == "json")
    if len(text.encode()) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(f"a schema may have at most {SCHEMA_BYTES_MAX} bytes")
    try:
        return _JsonSchema(text, given) if kind == "json" else _AvroSchema(text, given)
    except ModuleNotFoundError as error:
        raise InvalidSchema(
            f"this broker cannot check {kind} schemas, because {error.name} is not installed: "
            "pip install 'octavo[schemas]'"
        ) from None
    except RecursionError:
        raise InvalidSchema("the schema is nested too deeply") from None


def id_of(kind: str, text: str) -> str:
    """Return an id that depends only on the schema."""
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:16]


class Quick(Protocol):
    def steps(self, size: int) -> int: ...

    def fits(self, value: bytes) -> bool: ...


def quick(kind: str, text: str) -> Quick | None:
    """Return a checker for the event loop; None without a known bound."""
    if len(text) > QUICK_CHARS:
        return None
    try:
        given = msgspec.json.decode(text)
        return _quick_json(given) if kind == "json" else _quick_avro(given)
    except (InvalidSchema, ModuleNotFoundError, RecursionError, msgspec.DecodeError):
        return None  # the check in a worker process reports the error


def _quick_json(given: Any) -> Quick | None:
    cost = cost_of(given)
    if not cost.known or cost.parts > QUICK_PARTS:
        return None
    validator = _validator(given)

    class QuickJson:
        def steps(self, size: int) -> int:
            return cost.parts * (size + 1)

        def fits(self, value: bytes) -> bool:
            try:
                found = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):
                return False
            return bool(validator.is_valid(found))

    return QuickJson()


def _quick_avro(given: Any) -> Quick | None:
    schema = _AvroSchema("", given)
    if schema.shape.nests:
        return None
    base, per_byte = schema.shape.cost()
    if base > QUICK_PARTS:
        return None

    class QuickAvro:
        def steps(self, size: int) -> int:
            return _AVRO_STEPS * (base + max(1, per_byte) * size)

        def fits(self, value: bytes) -> bool:
            return schema.misfit(value) is None

    return QuickAvro()


def _validator(given: Any) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            given, pattern_options=jsonschema_rs.RegexOptions(), retriever=_fetch_nothing
        )
    except (ValueError, TypeError) as error:  # the library's errors inherit from ValueError
        raise InvalidSchema(f"no JSON Schema: {_short(error)}") from None


class _JsonSchema:
    def __init__(self, text: str, given: Any) -> None:
        self.text = text
        self._given = given
        self._validator = _validator(given)
        parts = cost_of(given).parts
        if parts > PARTS_MAX:
            raise InvalidSchema(
                "the schema costs too much: with its references filled in it has more than "
                f"{PARTS_MAX} parts, and a value may be held against each of them"
            )
        self._canonical: Any = None

    def misfit(self, value: bytes) -> str | None:
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            return f"the value is not JSON: {error}"
        if self._validator.is_valid(found):
            return None
        for wrong in self._validator.iter_errors(found):
            path = "/" + "/".join(str(step) for step in wrong.instance_path)
            return f"at {path}: {wrong.message[:SHOWN_CHARS]}"
        return None

    def unreadable(self, writer: Any) -> Sequence[str]:
        assert isinstance(writer, _JsonSchema)
        import jsonschema_rs

        containment = jsonschema_rs.canonical.Containment
        unproved = "it cannot be proved that it allows all values that the other does"
        try:
            answer = self.canonical.covers(writer.canonical)
        except ValueError as error:  # raised for schemas that it cannot compare: some with `not`
            return (f"{unproved}: {_short(error)}",)
        if answer == containment.YES:
            return ()
        if answer == containment.NO:
            return (f"it refuses some values that the other allows{self._lost(writer)}",)
        return (unproved,)

    @property
    def canonical(self) -> Any:
        """Return the form in which schemas are compared. Raises `ValueError`."""
        if self._canonical is None:
            import jsonschema_rs

            self._canonical = jsonschema_rs.canonicalize(
                self._given,
                pattern_options=jsonschema_rs.RegexOptions(),
                retriever=_fetch_nothing,
            )
        return self._canonical

    def _lost(self, writer: _JsonSchema) -> str:
        try:
            lost = writer.canonical.subtract(self.canonical).to_json_schema()
        except ValueError:
            return ""
        return f", such as {json.dumps(lost)[:SHOWN_CHARS]}"


class _AvroSchema:
    def __init__(self, text: str, given: Any) -> None:
        import fastavro
        import fastavro.schema

        self.text = text
        self._read = fastavro.schemaless_reader
        try:
            self._schema = fastavro.parse_schema(given)
            # Decimals are read as plain bytes: making numbers would cost much.
            self._as_read = fastavro.parse_schema(_without_decimals(given))
        except Exception as error:  # the library raises many kinds for invalid schemas
            what = f"{error} is missing" if isinstance(error, KeyError) else _short(error)
            raise InvalidSchema(f"no Avro schema: {what}") from None
        self.shape = Shape(self._schema)
        if (wrong := avro_mistake(given) or self.shape.mistake()) is not None:
            raise InvalidSchema(f"no Avro schema: {wrong}")

    def misfit(self, value: bytes) -> str | None:
        if (wrong := self.shape.misfit(value)) is not None:
            return f"the value is not of that Avro schema: {wrong}"
        stream = io.BytesIO(value)
        try:
            self._read(stream, self._as_read, None)
        except MemoryError:
            raise
        except Exception as error:  # the library raises many kinds for invalid values
            what = "it ends before that is whole" if isinstance(error, EOFError) else _short(error)
            return f"the value is not of that Avro schema: {what}"
        left = len(value) - stream.tell()
        return f"{left} bytes follow after the value" if left else None

    def unreadable(self, writer: Any) -> Sequence[str]:
        assert isinstance(writer, _AvroSchema)
        try:
            return avro_unreadable(self._schema, writer._schema)
        except TooManyPairs as error:
            return (f"it cannot be proved that it reads all that the other wrote: {error}",)


def _without_decimals(given: Any) -> Any:
    if isinstance(given, list):
        return [_without_decimals(one) for one in given]
    if not isinstance(given, dict):
        return given
    kept = {key: _without_decimals(value) for key, value in given.items()}
    if kept.get("logicalType") == "decimal":
        del kept["logicalType"]
    return kept


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"{uri[:80]} is another document, and none is fetched: put it under $defs")


def _short(error: BaseException) -> str:
    said = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return said[:SHOWN_CHARS]
