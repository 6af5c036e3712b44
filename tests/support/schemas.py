"""Schemas that are expensive to work with."""

from __future__ import annotations

from typing import Any


def fanned_out(levels: int) -> dict[str, Any]:
    """Each level refers to the next one twice, so a value is checked against 2 ** levels of
    them."""
    both = [[{"$ref": f"#/$defs/a{n + 1}"}] * 2 for n in range(levels)]
    named = {f"a{n}": {"allOf": refs} for n, refs in enumerate(both)}
    return {"$ref": "#/$defs/a0", "$defs": {**named, f"a{levels}": {"type": "integer"}}}


def record_of(name: str, *kinds: Any) -> dict[str, Any]:
    named = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": named}


def entangled(levels: int, last: str) -> dict[str, Any]:
    """Each record holds a union of two records that both hold the next: naive comparison takes
    4 ** levels steps."""
    found: Any = last
    for n in range(levels):
        found = ["null", record_of(f"a{n}", found), record_of(f"b{n}", f"a{n}")]
    return record_of("top", found)


def decimal_of(digits: int) -> bytes:
    size = bytes([0x80 | (digits << 1 & 0x7F), 0x80 | (digits >> 6 & 0x7F), digits >> 13])
    return size + b"7" * digits
