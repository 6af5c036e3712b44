"""Whether an Avro schema reads what another one wrote: Avro 1.11, "Schema Resolution". Pure.

Schemas are JSON values that the library has parsed, so they are schemas; names in them are full
ones. What is found wrong is said with the path at which it was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Avro = Any
"""`"string"`, `{"type": …}` or a list of them: a union."""
PROMOTIONS: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""By what was written: as what else it is read."""
_NAMED = ("record", "error", "enum", "fixed")


def mistake(given: Avro) -> str | None:
    """What is no Avro in a schema as it was given, of what the library takes all the same: a record
    without fields, two fields of a name, two types of a kind in a union. None: nothing of it.
    """
    if isinstance(given, list):
        kinds = [one.get("type") if isinstance(one, Mapping) else one for one in given]
        names = [
            one.get("name", kind) if isinstance(one, Mapping) and kind in _NAMED else kind
            for one, kind in zip(given, kinds, strict=True)
        ]
        return _twice("a union has the type", names) or _first(map(mistake, given))
    if not isinstance(given, Mapping):
        return None
    kind = given.get("type")
    if kind in ("record", "error"):
        fields = given.get("fields")
        if not isinstance(fields, list):
            return f"record {given.get('name')!r} has no fields: a list, which may be empty"
        parts = [one for one in fields if isinstance(one, Mapping)]
        twice = _twice(
            f"record {given.get('name')!r} has the field", [one.get("name") for one in parts]
        )
        return twice or _first(mistake(one.get("type")) for one in parts)
    return _first(mistake(given[part]) for part in ("type", "items", "values") if part in given)


def _twice(what: str, names: Sequence[object]) -> str | None:
    return _first(f"{what} {one!r} twice" for one in names if names.count(one) > 1)


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


def unreadable(reader: Avro, writer: Avro) -> list[str]:
    """Why `reader` does not read what `writer` wrote; empty when it does."""
    return list(_Pair(names_of(reader), names_of(writer)).problems(reader, writer, "", frozenset()))


class _Pair:
    """Two schemas, and the types that each has named."""

    def __init__(self, readers: Mapping[str, Avro], writers: Mapping[str, Avro]) -> None:
        self._readers = readers
        self._writers = writers

    def problems(
        self, reader: Avro, writer: Avro, path: str, inside: frozenset[tuple[str, str]]
    ) -> Iterator[str]:
        reader, writer = (
            self._readers.get(_key(reader), reader),
            self._writers.get(_key(writer), writer),
        )
        if isinstance(writer, list):
            for branch in writer:
                yield from self.problems(reader, branch, path, inside)
            return
        if isinstance(reader, list):
            if not any(self._fits(branch, writer, path, inside) for branch in reader):
                yield f"{path or '/'}: none of the reader's union reads {_shown(writer)}"
            return
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            if kind not in PROMOTIONS.get(written, ()):
                yield f"{path or '/'}: {_shown(writer)} is not read as {_shown(reader)}"
            return
        if kind in _NAMED:
            yield from self._named(reader, writer, path, inside)
        elif kind == "array":
            yield from self.problems(reader["items"], writer["items"], f"{path}/*", inside)
        elif kind == "map":
            yield from self.problems(reader["values"], writer["values"], f"{path}/*", inside)

    def _fits(
        self, reader: Avro, writer: Avro, path: str, inside: frozenset[tuple[str, str]]
    ) -> bool:
        return not any(True for _ in self.problems(reader, writer, path, inside))

    def _named(
        self, reader: Avro, writer: Avro, path: str, inside: frozenset[tuple[str, str]]
    ) -> Iterator[str]:
        kind = _kind(reader)
        both = (reader["name"], writer["name"])
        aliases = [_last(one) for one in reader.get("aliases", ())]
        if _last(both[0]) != _last(both[1]) and _last(both[1]) not in aliases:
            yield f"{path or '/'}: {kind} {both[1]} is not read as {both[0]}, by no alias of it"
            return
        if kind == "fixed":
            if reader["size"] != writer["size"]:
                yield f"{path or '/'}: {both[1]} has {writer['size']} bytes, not {reader['size']}"
        elif kind == "enum":
            lost = [one for one in writer["symbols"] if one not in reader["symbols"]]
            if lost and "default" not in reader:
                yield f"{path or '/'}: the reader has no default for {', '.join(lost)}"
        elif both not in inside:  # a record inside of itself was looked at already
            yield from self._fields(reader, writer, path, inside | {both})

    def _fields(
        self, reader: Avro, writer: Avro, path: str, inside: frozenset[tuple[str, str]]
    ) -> Iterator[str]:
        written = {one["name"]: one for one in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            found = next((written[name] for name in names if name in written), None)
            at = f"{path}/{field['name']}"
            if found is not None:
                yield from self.problems(field["type"], found["type"], at, inside)
            elif "default" not in field:
                yield f"{at}: was not written, and has no default"


def _kind(schema: Avro) -> str:
    if isinstance(schema, Mapping):
        inner = schema["type"]
        return _kind(inner) if isinstance(inner, Mapping) else str(inner)
    return str(schema)


def _key(schema: Avro) -> str:
    return schema if isinstance(schema, str) else ""


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _shown(schema: Avro) -> str:
    return (
        str(schema["name"]) if isinstance(schema, Mapping) and "name" in schema else _kind(schema)
    )


def names_of(schema: Avro) -> dict[str, Avro]:
    """All named types in a schema, by name."""
    found: dict[str, Avro] = {}
    left: list[Avro] = [schema]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            if one.get("type") in _NAMED and "name" in one:
                found[one["name"]] = one
            left += [one[key] for key in ("type", "items", "values") if key in one]
            fields: Sequence[Avro] = one.get("fields", ())
            left += [field["type"] for field in fields]
        elif isinstance(one, list):
            left += one
    return found
