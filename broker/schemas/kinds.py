"""JSON Schema and Avro, by their libraries: a schema read, messages checked, schemas compared.

The libraries are optional (`octavo[schemas]`) and loaded at the first use. A reference to another
document is refused, nothing is fetched; patterns are those of a matcher that takes linear time.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from octavo.broker.errors import InvalidSchema
from octavo.broker.schemas.avro_rules import mistake as avro_mistake
from octavo.broker.schemas.avro_rules import unreadable as avro_unreadable
from octavo.broker.schemas.avro_shape import Shape

TYPES = ("json", "avro")
SCHEMA_BYTES_MAX = 64 * 1024
SHOWN_CHARS = 300


class Schema(Protocol):
    """A schema that has been read."""

    @property
    def text(self) -> str:
        """In one form, however it was given."""

    def misfit(self, value: bytes) -> str | None:
        """Why a message's value does not fit, with the path in it; None when it does."""

    def unreadable(self, writer: Any) -> Sequence[str]:
        """Why it does not read what another one of its type wrote; empty when it does."""


def parsed(kind: str, given: Any) -> Schema:
    """The schema, of its JSON or its text. Raises `InvalidSchema`."""
    if kind not in TYPES:
        raise InvalidSchema(f"type is {kind[:40]!r}; it must be {' or '.join(TYPES)}")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise InvalidSchema(f"the schema is not JSON: {error}") from None
    text = json.dumps(given, separators=(",", ":"), ensure_ascii=False, sort_keys=kind == "json")
    if len(text.encode()) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(f"a schema may have {SCHEMA_BYTES_MAX} bytes")
    try:
        return _JsonSchema(text, given) if kind == "json" else _AvroSchema(text, given)
    except ModuleNotFoundError as error:
        raise InvalidSchema(
            f"this broker cannot check {kind} schemas, for {error.name} is not installed there: "
            "pip install 'octavo[schemas]'"
        ) from None
    except RecursionError:
        raise InvalidSchema("the schema is nested too deeply") from None


def id_of(kind: str, text: str) -> str:
    """The same for the same schema, wherever it is registered."""
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:16]


class _JsonSchema:
    def __init__(self, text: str, given: Any) -> None:
        import jsonschema_rs

        self.text = text
        self._rs = jsonschema_rs
        linear = jsonschema_rs.RegexOptions()
        try:
            self._validator = jsonschema_rs.validator_for(
                given, pattern_options=linear, retriever=_fetch_nothing
            )
            self._canonical = jsonschema_rs.canonicalize(
                given, pattern_options=linear, retriever=_fetch_nothing
            )
        except (ValueError, TypeError) as error:  # its own errors are kinds of ValueError
            raise InvalidSchema(f"no JSON Schema: {_short(error)}") from None

    def misfit(self, value: bytes) -> str | None:
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            return f"the value is not JSON: {error}"
        for wrong in self._validator.iter_errors(found):
            path = "/" + "/".join(str(step) for step in wrong.instance_path)
            return f"at {path}: {wrong.message[:SHOWN_CHARS]}"
        return None

    def unreadable(self, writer: Any) -> Sequence[str]:
        assert isinstance(writer, _JsonSchema)
        answer = self._canonical.covers(writer._canonical)
        if answer == self._rs.canonical.Containment.YES:
            return ()
        if answer == self._rs.canonical.Containment.NO:
            return (f"it refuses some values that the other allows{self._lost(writer)}",)
        return ("it cannot be proved that it allows all values that the other does",)

    def _lost(self, writer: _JsonSchema) -> str:
        try:
            lost = writer._canonical.subtract(self._canonical).to_json_schema()
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
        except Exception as error:  # whatever it says of what is no schema
            what = f"{error} is missing" if isinstance(error, KeyError) else _short(error)
            raise InvalidSchema(f"no Avro schema: {what}") from None
        self._shape = Shape(self._schema)
        if (wrong := avro_mistake(given) or self._shape.mistake()) is not None:
            raise InvalidSchema(f"no Avro schema: {wrong}")

    def misfit(self, value: bytes) -> str | None:
        if (wrong := self._shape.misfit(value)) is not None:
            return f"the value is not of that Avro schema: {wrong}"
        stream = io.BytesIO(value)
        try:
            self._read(stream, self._schema, None)
        except Exception as error:  # of bytes that are no such value, whatever it is
            what = "it ends before that is whole" if isinstance(error, EOFError) else _short(error)
            return f"the value is not of that Avro schema: {what}"
        left = len(value) - stream.tell()
        return f"{left} bytes stand behind the value" if left else None

    def unreadable(self, writer: Any) -> Sequence[str]:
        assert isinstance(writer, _AvroSchema)
        return avro_unreadable(self._schema, writer._schema)


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"{uri[:80]} is another document, and none is fetched: put it under $defs")


def _short(error: BaseException) -> str:
    said = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return said[:SHOWN_CHARS]
