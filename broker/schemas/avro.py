"""Which Avro schema reads values of another, and which values cost too much. Pure.

The rules are those of Avro 1.11, "Schema Resolution"; the library has parsed the schemas.

Avro values can be far larger than their bytes: a list of nulls has any length in three bytes, and
some thousand nested levels crash the library's recursion in C. So schemas whose values may have
endless parts without bytes are refused, and values of recursive schemas are scanned first, without
recursion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Avro = Any
"""`"string"`, `{"type": …}` or a list of them: a union."""
PROMOTIONS: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""For each written type, the types that read it as well."""
_NAMED = ("record", "error", "enum", "fixed")
PAIRS_MAX = 50_000
"""About half a second; two unions of 200 types have 40,000."""
_TOLD_MAX = 50
_SHOWN_MAX = 10


def mistake(given: Avro) -> str | None:
    """Find an error that the library accepts, in a schema as given.

    No fields, two fields with the same name, or a type twice in a union.
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
    seen: set[str] = set()
    for one in names:
        if repr(one) in seen:
            return f"{what} {one!r} twice"
        seen.add(repr(one))
    return None


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


class TooManyPairs(ValueError):
    def __init__(self) -> None:
        super().__init__(f"the two schemas have more than {PAIRS_MAX} pairs of types to compare")


def unreadable(reader: Avro, writer: Avro) -> list[str]:
    return _Pairs(names_of(reader), names_of(writer)).problems(reader, writer)


class _Pair:
    """A reader's type with a writer's, and the pairs that it depends on."""

    __slots__ = ("all_of", "any_of", "fits", "left", "needed_by", "problems", "reader", "writer")

    def __init__(self, reader: Avro, writer: Avro) -> None:
        self.reader, self.writer = reader, writer
        self.problems: list[tuple[str, str]] = []
        """The pair's own problems: the rest of the path, and what is wrong."""
        self.all_of: list[tuple[str, _Pair]] = []
        """Pairs that must all fit; each with the rest of its path."""
        self.any_of: list[_Pair] | None = None
        """At least one of these pairs must fit."""
        self.left = 0
        self.needed_by: list[_Pair] = []
        self.fits = True


class _Pairs:
    """All pairs, each compared once.

    A type may contain itself: a pair fits until the opposite is shown, and a misfit is passed on to
    the pairs that need it.
    """

    def __init__(self, readers: Mapping[str, Avro], writers: Mapping[str, Avro]) -> None:
        self._readers = readers
        self._writers = writers
        self._known: dict[tuple[int, int], _Pair] = {}
        self._new: list[_Pair] = []
        self._edges = 0

    def problems(self, reader: Avro, writer: Avro) -> list[str]:
        top = self._pair(reader, writer)
        while self._new:
            self._look(self._new.pop())
        misfits = [pair for pair in self._known.values() if pair.problems or pair.any_of == []]
        for pair in misfits:
            pair.fits = False
        while misfits:
            for other in misfits.pop().needed_by:
                if other.any_of is not None:
                    other.left -= 1
                if other.fits and not (other.any_of is not None and other.left):
                    other.fits = False
                    misfits.append(other)
        return [] if top.fits else self._told(top)

    def _pair(self, reader: Avro, writer: Avro, needed_by: _Pair | None = None) -> _Pair:
        reader, writer = _resolved(reader, self._readers), _resolved(writer, self._writers)
        key = (id(reader), id(writer))
        pair = self._known.get(key)
        if pair is None:
            pair = self._known[key] = _Pair(reader, writer)
            self._new.append(pair)
        if needed_by is not None:
            pair.needed_by.append(needed_by)
            self._edges += 1
            if self._edges > PAIRS_MAX:
                raise TooManyPairs
        return pair

    def _look(self, pair: _Pair) -> None:
        reader, writer = pair.reader, pair.writer
        if isinstance(writer, list):
            pair.all_of = [("", self._pair(reader, branch, pair)) for branch in writer]
            return
        if isinstance(reader, list):
            pair.any_of = [self._pair(branch, writer, pair) for branch in reader]
            pair.left = len(pair.any_of)
            return
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            if kind not in PROMOTIONS.get(written, ()):
                pair.problems = [("", f"{_shown(writer)} is not read as {_shown(reader)}")]
        elif kind in _NAMED:
            self._look_at_named(kind, pair)
        elif kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            pair.all_of = [("/*", self._pair(reader[part], writer[part], pair))]

    def _look_at_named(self, kind: str, pair: _Pair) -> None:
        reader, writer = pair.reader, pair.writer
        own, other = reader["name"], writer["name"]
        aliases = {_last(one) for one in reader.get("aliases", ())}
        if _last(own) != _last(other) and _last(other) not in aliases:
            pair.problems = [("", f"{kind} {other} is not read as {own}, by no alias of it")]
        elif kind == "fixed":
            if reader["size"] != writer["size"]:
                wrong = f"{other} has {writer['size']} bytes, not {reader['size']}"
                pair.problems = [("", wrong)]
        elif kind == "enum":
            symbols = set(reader["symbols"])
            lost = [one for one in writer["symbols"] if one not in symbols]
            if lost and "default" not in reader:
                shown = ", ".join(lost[:_SHOWN_MAX]) + ", …" * (len(lost) > _SHOWN_MAX)
                pair.problems = [("", f"the reader has no default for {shown}")]
        else:
            written = {one["name"]: one for one in writer["fields"]}
            for field in reader["fields"]:
                names = (field["name"], *field.get("aliases", ()))
                found = next((written[name] for name in names if name in written), None)
                at = f"/{field['name']}"
                if found is not None:
                    pair.all_of.append((at, self._pair(field["type"], found["type"], pair)))
                elif "default" not in field:
                    pair.problems.append((at, "was not written, and has no default"))

    def _told(self, top: _Pair) -> list[str]:
        found: list[str] = []
        seen: set[int] = set()
        left: list[tuple[str, _Pair]] = [("", top)]
        while left and len(found) < _TOLD_MAX:
            path, pair = left.pop()
            if pair.fits or id(pair) in seen:
                continue
            seen.add(id(pair))
            found += [f"{path + at or '/'}: {wrong}" for at, wrong in pair.problems]
            if pair.any_of is not None:
                found.append(f"{path or '/'}: none of the reader's union reads "
                             f"{_shown(pair.writer)}")  # fmt: skip
            left += [(path + at, inner) for at, inner in reversed(pair.all_of)]
        return found[:_TOLD_MAX]


def _resolved(schema: Avro, names: Mapping[str, Avro]) -> Avro:
    while True:
        if isinstance(schema, str) and schema in names:
            schema = names[schema]
        elif isinstance(schema, Mapping) and (
            not isinstance(schema["type"], str) or schema["type"] in names
        ):
            schema = schema["type"]
        else:
            return schema


def _kind(schema: Avro) -> str:
    if isinstance(schema, Mapping):
        inner = schema["type"]
        return _kind(inner) if isinstance(inner, Mapping) else str(inner)
    return str(schema)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _shown(schema: Avro) -> str:
    return (
        str(schema["name"]) if isinstance(schema, Mapping) and "name" in schema else _kind(schema)
    )


def names_of(schema: Avro) -> dict[str, Avro]:
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


DEPTH_MAX = 200
_EMPTY_MAX = 32
"""Parts of a type whose values take no byte."""
_LONG_BYTES_MAX = 10
_BYTES_OF = {"boolean": 1, "float": 4, "double": 8}
PARTS_A_BYTE_MAX = 64
"""16 KB of records with a boolean and 2,000 nulls took 15 s and 879 MB."""
BASE_PARTS_MAX = 100_000
"""30 nested records, each with the record before it twice, have 2 to the 30th parts."""
_PARTS_MAX = 1 << 30


class _Blocks(NamedTuple):
    item: Avro


class Shape:
    """Bounds on a schema's values, for reading them safely."""

    def __init__(self, schema: Avro) -> None:
        self._schema = schema
        self._names = names_of(schema)
        self._empty: dict[str, int | None] = {}
        self._in_circles = self._circles()
        self.nests = bool(self._in_circles)
        """Whether some type contains itself."""
        self._sizes: dict[str, tuple[int, int]] = {}

    def mistake(self) -> str | None:
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
                    return "a list whose elements take no byte may have any number of them"
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
        if not self.nests:
            return None
        try:
            return self._walk(value)
        except IndexError:
            return "it ends before that is whole"
        except ValueError as error:
            return str(error)

    def _circles(self) -> frozenset[str]:
        """Return types through one of which every cycle of the schema passes."""
        named: set[str] = set()
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
                    named.add(inner)
                elif inner not in done:
                    open_.add(inner)
                    way.append((inner, iter(self._named_inside(inner))))
        return frozenset(named)

    def _named_inside(self, name: str) -> list[str]:
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
        """Bound the parts of a value: (a base, and more per byte).

        Lists, maps and recursive types pay by their bytes. Call this only if `mistake` found
        nothing.
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
        """Return the most parts and the least bytes of a value.

        Elements of lists and maps and recursive records do not count: each has a byte, so
        `per_byte` bounds them.
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
                return 1, 1  # it is in a union, a list or a map, which has a byte for it
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
        """Count the parts without bytes; None if the value has bytes."""
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
    found = shift = 0
    for place in range(at, at + _LONG_BYTES_MAX):
        byte = value[place]
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), place + 1
    raise ValueError(f"it has a number of more than {_LONG_BYTES_MAX} bytes")


def _inside(schema: Avro) -> list[Avro]:
    if isinstance(schema, list):
        return [*schema]
    if not isinstance(schema, Mapping):
        return []
    found = [schema[part] for part in ("type", "items", "values") if part in schema]
    return found + [one["type"] for one in schema.get("fields", ())]
