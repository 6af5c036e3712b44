"""Bound the cost of checking a value by a JSON Schema, computed from the schema alone. Pure.

Each part of a value is compared with each part of the schema, references filled in, at most once.
This holds for the keywords listed here, if no reference leads back to itself; by any other schema,
values are checked in a process with limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

PARTS_MAX = 1_000_000
"""60 levels of two references each have 2 to the 60th."""
_DEPTH_MAX = 80
"""Nested keywords and references; Python makes six nested calls for each."""
_SCHEMA = frozenset(
    ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not",
     "propertyNames", "then")
)  # fmt: skip
"""Keywords whose value is a schema, or in earlier drafts a list."""
_SCHEMAS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_BY_NAME = frozenset(("dependentSchemas", "properties"))
_ASIDE = frozenset(("$defs", "definitions"))
"""Used only where a reference names them."""
_WORDS = frozenset(
    ("$comment", "default", "deprecated", "description", "examples", "readOnly", "title",
     "writeOnly")
)  # fmt: skip
_VALUES = frozenset(
    ("const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "maxContains",
     "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
     "minProperties", "minimum", "required", "type", "uniqueItems")
)  # fmt: skip
_AT_THE_TOP = frozenset(("$id", "$schema"))
_FORMATS = frozenset(("date", "date-time", "ipv4", "ipv6", "time", "uuid"))
"""Read once from left to right; others may be patterns, which cost more."""


class JsonCost(NamedTuple):
    parts: int
    """References filled in; counted up to `PARTS_MAX` + 1."""
    known: bool
    """Whether parts of the schema times parts of the value bound the steps."""


def cost_of(schema: Any) -> JsonCost:
    walk = _Walk(schema)
    parts = walk.weigh(schema, 0)
    return JsonCost(parts, walk.known)


class _Walk:
    def __init__(self, document: Any) -> None:
        self.known = True
        self._document = document
        self._weights: dict[int, int] = {}
        self._open: set[int] = set()

    def weigh(self, schema: Any, depth: int) -> int:
        if not isinstance(schema, Mapping):
            return self._other(schema, depth)
        key = id(schema)
        if key in self._open or depth > _DEPTH_MAX:
            self.known = False
            return 1
        if key not in self._weights:
            self._open.add(key)
            parts = 1 + sum(self._keyword(*one, schema, depth) for one in schema.items())
            self._weights[key] = min(parts, PARTS_MAX + 1)
            self._open.discard(key)
        return self._weights[key]

    def _keyword(self, word: str, given: Any, schema: Any, depth: int) -> int:
        if word in _WORDS or word in _ASIDE:
            return 1
        if word in _VALUES:
            return _parts_of(given)
        if word in _SCHEMA:
            return self._list(given, depth) if isinstance(given, list) else self.weigh(
                given, depth + 1
            )  # fmt: skip
        if word in _SCHEMAS and isinstance(given, list):
            return self._list(given, depth)
        if word in _BY_NAME and isinstance(given, Mapping):
            return self._list(list(given.values()), depth)
        if word == "$ref":
            return 1 + self._referred(given, depth)
        at_the_top = schema is self._document and word in _AT_THE_TOP
        if not at_the_top and not (word == "format" and given in _FORMATS):
            self.known = False
        return self._other(given, depth)

    def _list(self, schemas: list[Any], depth: int) -> int:
        return 1 + sum(self.weigh(one, depth + 1) for one in schemas)

    def _referred(self, reference: Any, depth: int) -> int:
        if reference == "#":
            return self.weigh(self._document, depth + 1)
        found = self._document
        if not isinstance(reference, str) or not reference.startswith("#/"):
            self.known = False
            return 1
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            else:  # a number in a list, or escaped otherwise
                self.known = False
                return 1
        return self.weigh(found, depth + 1)

    def _other(self, given: Any, depth: int) -> int:
        """Estimate an unknown value, in which a schema may be anywhere."""
        if isinstance(given, Mapping):
            return self._list(list(given.values()), depth)
        if isinstance(given, list):
            return self._list(given, depth)
        return 1


def _parts_of(value: Any) -> int:
    parts = 0
    left = [value]
    while left:
        one = left.pop()
        parts += 1
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list):
            left += one
    return parts
