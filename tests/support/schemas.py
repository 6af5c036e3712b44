"""Schemas that are hard to work with."""

from __future__ import annotations

from typing import Any


def fanned_out(levels: int) -> dict[str, Any]:
    """Each level refers to the next one twice: a value is held against 2 ** levels of them."""
    both = [[{"$ref": f"#/$defs/a{n + 1}"}] * 2 for n in range(levels)]
    named = {f"a{n}": {"allOf": refs} for n, refs in enumerate(both)}
    return {"$ref": "#/$defs/a0", "$defs": {**named, f"a{levels}": {"type": "integer"}}}
