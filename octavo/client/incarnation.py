"""Which topic of a name is meant: the one that was seen first.

A topic that was deleted and made again is another one; offsets, sequences and ack ids of the
earlier one mean nothing in it. Brokers say in each answer which one it is about, and refuse a
call that names an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADER = "Octavo-Incarnation"


class Incarnation:
    """The incarnation that all calls of a producer, reader or consumer are about; empty before
    the first answer."""

    __slots__ = ("seen",)

    def __init__(self, seen: str = "") -> None:
        self.seen = seen

    def headers(self) -> dict[str, str]:
        """Return the headers that name it in a call."""
        return {HEADER: self.seen} if self.seen else {}

    def agrees(self, headers: Mapping[str, str]) -> bool:
        """Return whether an answer is about this topic; the first answer decides the topic."""
        told = headers.get(HEADER, "")
        self.seen = self.seen or told
        return told in ("", self.seen)
