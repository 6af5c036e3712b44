"""Whether an Avro schema reads values of another one: Avro 1.11, "Schema Resolution". Pure.

Schemas are JSON values that the library has parsed, so they are valid, and their names are full
names. Each problem is reported with its path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
"""By the written type: the types that read it as well."""
_NAMED = ("record", "error", "enum", "fixed")
PAIRS_MAX = 50_000
"""The most pairs of types to compare: about half a second. Two unions of 200 types have 40,000."""
_TOLD_MAX = 50
_SHOWN_MAX = 10


def mistake(given: Avro) -> str | None:
    """Find an error that the library accepts in a schema as it was given: a record without fields,
    two fields with the same name, or a type twice in a union. None if there is no such error.
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
    """Two schemas have more pairs of types to compare than `PAIRS_MAX`."""

    def __init__(self) -> None:
        super().__init__(f"the two schemas have more than {PAIRS_MAX} pairs of types to compare")


def unreadable(reader: Avro, writer: Avro) -> list[str]:
    """Why `reader` does not read values of `writer`; empty if it does. Raises `TooManyPairs`."""
    return _Pairs(names_of(reader), names_of(writer)).problems(reader, writer)


class _Pair:
    """A type of the reader with a type of the writer, and the pairs that it depends on."""

    __slots__ = ("all_of", "any_of", "fits", "left", "needed_by", "problems", "reader", "writer")

    def __init__(self, reader: Avro, writer: Avro) -> None:
        self.reader, self.writer = reader, writer
        self.problems: list[tuple[str, str]] = []
        """Problems of this pair itself: the rest of the path, and what is wrong."""
        self.all_of: list[tuple[str, _Pair]] = []
        """All of these must fit: the rest of the path, and the pair."""
        self.any_of: list[_Pair] | None = None
        """At least one of these must fit."""
        self.left = 0
        """How many of `any_of` may still fit."""
        self.needed_by: list[_Pair] = []
        self.fits = True


class _Pairs:
    """All pairs of types in a comparison, each looked at once.

    A type may contain itself, so a pair may depend on itself: every pair counts as fitting until
    the opposite is shown, and a misfit is passed on to the pairs that need it.
    """

    def __init__(self, readers: Mapping[str, Avro], writers: Mapping[str, Avro]) -> None:
        self._readers = readers
        self._writers = writers
        self._known: dict[tuple[int, int], _Pair] = {}
        self._new: list[_Pair] = []
        self._edges = 0

    def problems(self, reader: Avro, writer: Avro) -> list[str]:
        """Why `reader` does not read `writer`."""
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
        """Return the problems with their paths: each pair once, at most `_TOLD_MAX`."""
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
    """Return the type that a name stands for, without wrappers like `{"type": {…}}`."""
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
