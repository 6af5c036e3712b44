"""The bounds of a process's settings, declared with the field of a config class. Pure.

    port: int = bounded(8080, 0, 65_535)

Without a declaration a whole number is at least 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Bounds:
    least: float | None = 1
    most: float | None = None
    words: str = ""
    """The allowed values in words, where the numbers are not enough."""

    def __str__(self) -> str:
        if self.words:
            return self.words
        return (
            f"at least {self.least}"
            if self.most is None
            else f"between {self.least} and {self.most}"
        )

    def hold(self, value: float) -> bool:
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)


class Beyond(NamedTuple):
    name: str
    value: float
    bounds: Bounds


def bounded(
    default: Any, least: float | None = None, most: float | None = None, words: str = ""
) -> Any:
    return field(default=default, metadata={"bounds": Bounds(least, most, words)})


def bounds_of(config: Any) -> dict[str, Bounds]:
    return {
        one.name: one.metadata.get("bounds") or Bounds()
        for one in fields(config)
        if "bounds" in one.metadata or type(one.default) is int
    }


def beyond_bounds(config: Any) -> Beyond | None:
    for name, bounds in bounds_of(config).items():
        value = getattr(config, name)
        if value is not None and not bounds.hold(value):
            return Beyond(name, value, bounds)
    return None
