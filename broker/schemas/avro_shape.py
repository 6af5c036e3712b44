"""Avro values that are far larger than their bytes: deeply nested, or with empty elements. Pure.

The library reads nested values by recursion in C: some thousand levels crash the process. A list of
nulls has as many elements as it says, in three bytes. So schemas whose values may have any number
of parts without bytes are refused, and values of a recursive schema are first scanned here, without
recursion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.schemas.avro_rules import Avro, names_of

DEPTH_MAX = 200
"""The most records, lists and maps nested in one another."""
_EMPTY_MAX = 32
"""The most parts of a type whose values take no byte."""
_LONG_BYTES_MAX = 10
_BYTES_OF = {"boolean": 1, "float": 4, "double": 8}
PARTS_A_BYTE_MAX = 64
"""Per byte of a value: 16 KB of records with a boolean and 2,000 nulls took 15 s and 879 MB."""
BASE_PARTS_MAX = 100_000
"""Nested records: 30 of them, each with the record before it twice, have 2 to the 30th parts."""
_PARTS_MAX = 1 << 30


class _Blocks(NamedTuple):
    """The following elements of a list or a map, in blocks with a count each."""

    item: Avro


class Shape:
    """Bounds on the values of a schema, as far as they matter for reading them safely."""

    def __init__(self, schema: Avro) -> None:
        """`schema` is what the Avro library made of the schema's text."""
        self._schema = schema
        self._names = names_of(schema)
        self._empty: dict[str, int | None] = {}
        self._in_circles = self._circles()
        self.nests = bool(self._in_circles)
        """Whether some type contains itself."""
        self._sizes: dict[str, tuple[int, int]] = {}

    def mistake(self) -> str | None:
        """Why short values of this schema may have endless parts; None if they cannot."""
        try:
            for name in self._names:
                parts = self._empty_parts(name, ())
                if parts is not None and parts > _EMPTY_MAX:
                    return f"{name} has {parts} parts, and its values have no byte"
            left: list[Avro] = [self._schema]
            while left:
                one = left.pop()
                is_list = isinstance(one, Mapping) and one.get("type") == "array"
                if is_list and self._empty_parts(one["items"], ()) is not None:
                    return "a list of what takes no byte may have any number of elements"
                left += _inside(one)
        except _Endless as error:
            return f"{error} contains itself, always: no value of it ends"
        base, per_byte = self.cost()
        if per_byte > PARTS_A_BYTE_MAX:
            return (
                f"a value may have {per_byte} parts for each of its bytes, nulls for example; "
                f"the most are {PARTS_A_BYTE_MAX}"
            )
        if base > BASE_PARTS_MAX:
            return f"a value may have {base} parts beside its lists; the most are {BASE_PARTS_MAX}"
        return None

    def misfit(self, value: bytes) -> str | None:
        """Why a value nests too deeply, or is invalid; None if the library may read it."""
        if not self.nests:
            return None
        try:
            return self._walk(value)
        except IndexError:
            return "it ends before that is whole"
        except ValueError as error:
            return str(error)

    def _circles(self) -> frozenset[str]:
        """Return the named types at which a path through the schema returns to itself.

        Every cycle contains one of them. Computed without recursion: types may nest deeply.
        """
        found: set[str] = set()
        open_, done = set[str](), set[str]()
        for first in self._names:
            if first in done:
                continue
            open_.add(first)
            way = [(first, iter(self._named_inside(first)))]
            while way:
                name, following = way[-1]
                inner = next(following, None)
                if inner is None:
                    way.pop()
                    open_.discard(name)
                    done.add(name)
                elif inner in open_:
                    found.add(inner)
                elif inner not in done:
                    open_.add(inner)
                    way.append((inner, iter(self._named_inside(inner))))
        return frozenset(found)

    def _named_inside(self, name: str) -> list[str]:
        """Return the named types directly inside a type."""
        found: list[str] = []
        left = _inside(self._names[name])
        while left:
            one = left.pop()
            inner = one.get("name") if isinstance(one, Mapping) else one
            if isinstance(inner, str) and inner in self._names:
                found.append(inner)
            else:
                left += _inside(one)
        return found

    def cost(self) -> tuple[int, int]:
        """Bound the parts of a value: (a base, and more for each of its bytes).

        The content of lists, maps and recursive types is paid for by its own bytes. Call this only
        if `mistake` has found nothing.
        """
        base, _ = self._size(self._schema)
        per_byte = 0
        left: list[Avro] = [self._schema]
        while left:
            one = left.pop()
            kind = one.get("type") if isinstance(one, Mapping) else None
            if kind in ("array", "map"):
                parts, least = self._size(_element(one, kind))
                per_byte = max(per_byte, -(-(parts + 1) // max(1, least)))
            left += _inside(one)
        for name in self._in_circles:
            parts, least = self._size_of_named(name)
            per_byte = max(per_byte, -(-parts // max(1, least)))
        return base, per_byte

    def _size(self, schema: Avro) -> tuple[int, int]:
        """Return the most parts that a value has, and its fewest bytes.

        Elements of lists and maps, and records that contain themselves, are not counted: each has
        bytes of its own in the value, so `per_byte` bounds them.
        """
        schema = self._resolved(schema)
        if isinstance(schema, list):
            sizes = [self._size(one) for one in schema]
            parts = max((one for one, _ in sizes), default=0)
            return 1 + parts, 1 + min((least for _, least in sizes), default=0)
        kind = schema["type"] if isinstance(schema, Mapping) else schema
        if kind in ("record", "error"):
            name = schema["name"]
            if name in self._in_circles:
                return 1, 1  # it is inside a union, a list or a map, whose byte pays for it
            return self._size_of_named(name) if name else self._size_of_fields(schema)
        if kind == "fixed":
            return 1, int(schema["size"])
        return 1, 0 if kind == "null" else _BYTES_OF.get(kind, 1)

    def _size_of_named(self, name: str) -> tuple[int, int]:
        if name not in self._sizes:
            self._sizes[name] = self._size_of_fields(self._names[name])
        return self._sizes[name]

    def _size_of_fields(self, schema: Avro) -> tuple[int, int]:
        sizes = [self._size(one["type"]) for one in schema.get("fields", ())]
        parts = 1 + sum(one for one, _ in sizes)
        return min(parts, _PARTS_MAX), min(sum(least for _, least in sizes), _PARTS_MAX)

    def _empty_parts(self, schema: Avro, inside: tuple[str, ...]) -> int | None:
        """How many parts a value has if it never has a byte; None if it has bytes.

        Raises `_Endless`.
        """
        schema = self._resolved(schema)
        if schema == "null":
            return 1
        if not isinstance(schema, Mapping):
            return None
        kind = schema["type"]
        if kind == "fixed":
            return 1 if schema["size"] == 0 else None
        if kind not in ("record", "error"):
            return None
        name = schema["name"]
        if name in inside:
            raise _Endless(name)
        if name not in self._empty:
            parts = [self._empty_parts(one["type"], (*inside, name)) for one in schema["fields"]]
            whole = [one for one in parts if one is not None]
            self._empty[name] = 1 + sum(whole) if len(whole) == len(parts) else None
        return self._empty[name]

    def _resolved(self, schema: Avro) -> Avro:
        """Return the type without names and wrappers."""
        while True:
            if isinstance(schema, str) and schema in self._names:
                schema = self._names[schema]
            elif isinstance(schema, Mapping) and (
                not isinstance(schema["type"], str) or schema["type"] in self._names
            ):
                schema = schema["type"]
            elif isinstance(schema, Mapping) and schema["type"] == "null":
                return "null"
            else:
                return schema

    def _walk(self, value: bytes) -> str | None:
        at = 0
        todo: list[tuple[Avro, int, int]] = [(self._schema, 0, 1)]
        """The types to read next, with their depth and count."""
        while todo:
            schema, depth, count = todo.pop()
            if count > 1:
                todo.append((schema, depth, count - 1))
            if depth > DEPTH_MAX:
                return f"it is nested more than {DEPTH_MAX} deep"
            if isinstance(schema, _Blocks):
                number, at = _long(value, at)
                if number < 0:
                    _, at = _long(value, at)
                if number:
                    todo += [(schema, depth, 1), (schema.item, depth, abs(number))]
                continue
            schema = self._resolved(schema)
            kind = schema["type"] if isinstance(schema, Mapping) else schema
            if isinstance(schema, list):
                number, at = _long(value, at)
                if not 0 <= number < len(schema):
                    return f"a union of {len(schema)} types has no type {number}"
                todo.append((schema[number], depth, 1))
            elif kind in ("record", "error"):
                todo += [(one["type"], depth + 1, 1) for one in reversed(schema["fields"])]
            elif kind in ("array", "map"):
                todo.append((_Blocks(_element(schema, kind)), depth + 1, 1))
            else:
                at = _behind(value, at, kind, schema)
        return None


class _Endless(Exception):
    pass


def _element(schema: Avro, kind: str) -> Avro:
    if kind == "array":
        return schema["items"]
    fields = [{"type": "string"}, {"type": schema["values"]}]
    return {"type": "record", "name": "", "fields": fields}


def _behind(value: bytes, at: int, kind: str, schema: Avro) -> int:
    """Where a simple value ends. Raises `IndexError`, `ValueError`."""
    if kind in ("int", "long", "enum"):
        return _long(value, at)[1]
    if kind in ("bytes", "string"):
        size, at = _long(value, at)
        if size < 0:
            raise ValueError(f"it has {kind} of {size} bytes")
    else:
        size = schema["size"] if kind == "fixed" else _BYTES_OF.get(kind, 0)
    if at + size > len(value):
        raise IndexError
    return at + size


def _long(value: bytes, at: int) -> tuple[int, int]:
    """Read a number; return it and where it ends. Raises `IndexError`, `ValueError`."""
    found = shift = 0
    for place in range(at, at + _LONG_BYTES_MAX):
        byte = value[place]
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), place + 1
    raise ValueError(f"it has a number of more than {_LONG_BYTES_MAX} bytes")


def _inside(schema: Avro) -> list[Avro]:
    """Return the schemas directly inside a schema."""
    if isinstance(schema, list):
        return [*schema]
    if not isinstance(schema, Mapping):
        return []
    found = [schema[part] for part in ("type", "items", "values") if part in schema]
    return found + [one["type"] for one in schema.get("fields", ())]
