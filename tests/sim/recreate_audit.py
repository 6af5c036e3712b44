"""The referee of topics that are deleted and made again: everything is keyed by incarnation.

Acked into one topic: there, as long as nobody begins to delete it, and in no other of its name.
When a deletion was answered, nothing that begins afterwards may be acked into that topic, nor show
anything of it. No sequence that an earlier topic has had is answered "stored before" (X13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Fail = Callable[[str], None]


@dataclass(slots=True, eq=False)
class Incarnation:
    """One topic of the name."""

    number: int
    deletions: int = 0
    """Begun."""
    gone: bool = False
    """A deletion was answered."""
    acked: set[str] = field(default_factory=set)
    numbered: int = 0
    """Messages under the one sequence that were sent to it and to no other."""


class RecreateAudit:
    """All topics of one name, one after the other."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self.known: dict[str, Incarnation] = {}
        self.sent: dict[str, frozenset[str]] = {}
        """Message → the topics that were gone when it was sent."""
        self.where: dict[str, str] = {}
        """Message → the topic that it was acked into or seen in."""

    def made(self, incarnation: str) -> None:
        """Its record was written."""
        self.known.setdefault(incarnation, Incarnation(len(self.known) + 1))

    def gone(self) -> frozenset[str]:
        """Those whose deletion was answered: for a call that begins now."""
        return frozenset(name for name, one in self.known.items() if one.gone)

    def sends(self, value: str, numbered_for: str | None) -> None:
        """A message is sent, once; a numbered one for a certain topic."""
        self.sent[value] = self.gone()
        if numbered_for is not None:
            self.known[numbered_for].numbered += 1

    def deletion_begins(self, incarnation: str) -> None:
        """Somebody asks for it."""
        self.known[incarnation].deletions += 1

    def deleted(self, incarnation: str) -> None:
        """He was told that it is gone."""
        self.known[incarnation].gone = True

    def acked(self, value: str, incarnation: str, *, duplicate: bool) -> None:
        """The publisher was told that it is durable."""
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
        """A reader or consumer, whose call began when these were `gone`, was given these.

        `vouched`: whoever gave them had a session. One whose session is over may not have heard.
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
        """All of a topic that nobody has begun to delete; what was `acked` when the read began."""
        topic = self.known[incarnation]
        missing = sorted(set(acked) - set(values))
        if missing and not topic.deletions:
            self._fail(f"X13 topic {topic.number}: {missing} were acked and are nowhere")

    def ack_taken(self, given: str, taken: str) -> None:
        """An ack id of one topic was taken by a topic."""
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
