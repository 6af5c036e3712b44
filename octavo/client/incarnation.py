"""Keep calls to the topic that was seen first, even if another topic gets its name.

Brokers name a topic's incarnation in each answer, and refuse calls for an earlier incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADER = "Octavo-Incarnation"


class Incarnation:
    """A topic's incarnation as brokers' answers name it; empty before the first answer."""

    __slots__ = ("seen",)

    def __init__(self, seen: str = "") -> None:
        self.seen = seen

    def headers(self) -> dict[str, str]:
        return {HEADER: self.seen} if self.seen else {}

    def agrees(self, headers: Mapping[str, str]) -> bool:
        """Return whether an answer is about this topic; the first answer decides the topic."""
        told = headers.get(HEADER, "")
        self.seen = self.seen or told
        return told in ("", self.seen)
