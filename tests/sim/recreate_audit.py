"""The referee of topics that are deleted and made again (X13).

All state is keyed by incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Fail = Callable[[str], None]


@dataclass(slots=True, eq=False)
class Incarnation:
    number: int
    deletions: int = 0
    gone: bool = False
    acked: set[str] = field(default_factory=set)
    numbered: int = 0
    """Messages under the one sequence that were sent to this topic only."""


class RecreateAudit:
    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self.known: dict[str, Incarnation] = {}
        self.sent: dict[str, frozenset[str]] = {}
        """Message → the topics that were gone when it was sent."""
        self.where: dict[str, str] = {}
        """Message → the topic that it was acked into or seen in."""

    def made(self, incarnation: str) -> None:
        self.known.setdefault(incarnation, Incarnation(len(self.known) + 1))

    def gone(self) -> frozenset[str]:
        return frozenset(name for name, one in self.known.items() if one.gone)

    def sends(self, value: str, numbered_for: str | None) -> None:
        """Note that a message is sent, once; a numbered message is for a certain topic."""
        self.sent[value] = self.gone()
        if numbered_for is not None:
            self.known[numbered_for].numbered += 1

    def deletion_begins(self, incarnation: str) -> None:
        self.known[incarnation].deletions += 1

    def deleted(self, incarnation: str) -> None:
        self.known[incarnation].gone = True

    def acked(self, value: str, incarnation: str, *, duplicate: bool) -> None:
        topic = self.known[incarnation]
        if incarnation in self.sent[value]:
            self._fail(
                f"X13 {value} was sent after topic {topic.number} was gone, and acked into it"
            )
        if duplicate and topic.numbered < 2:
            self._fail(f"X13 {value}: topic {topic.number} says stored before, and never had it")
        if not duplicate:
            self._seen(value, incarnation)
            topic.acked.add(value)

    def shown(
        self, incarnation: str, values: Iterable[str], gone: frozenset[str], *, vouched: bool
    ) -> None:
        """Check messages shown to a call that began when these topics were `gone`.

        `vouched`: the answering broker had a session. A broker without one may not have heard of a
        deletion.
        """
        topic = self.known[incarnation]
        if incarnation in gone and vouched:
            self._fail(f"X13 topic {topic.number} was gone, and is shown")
        for value in values:
            if value not in self.sent:
                self._fail(f"X13 {value} in topic {topic.number} was never sent")
                continue
            if incarnation in self.sent[value]:
                self._fail(
                    f"X13 {value} was sent after topic {topic.number} was gone, and is in it"
                )
            self._seen(value, incarnation)

    def whole(self, incarnation: str, values: Iterable[str], acked: Iterable[str]) -> None:
        """Check a whole read of a topic without deletions; `acked` when the read began."""
        topic = self.known[incarnation]
        missing = sorted(set(acked) - set(values))
        if missing and not topic.deletions:
            self._fail(f"X13 topic {topic.number}: {missing} were acked and are nowhere")

    def ack_taken(self, given: str, taken: str) -> None:
        if given != taken:
            self._fail(
                f"X13 topic {self.known[taken].number} took an ack id of topic "
                f"{self.known[given].number}"
            )

    def _seen(self, value: str, incarnation: str) -> None:
        before = self.where.setdefault(value, incarnation)
        if before != incarnation:
            numbers = self.known[before].number, self.known[incarnation].number
            self._fail(f"X13 {value} is in topics {numbers[0]} and {numbers[1]}")
