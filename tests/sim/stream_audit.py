"""The referee of durable streams (X20), by the answers to writers and readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.broker.state.stream import Append
from octavo.broker.types import TopicName


@dataclass(eq=False)
class Sent:
    values: Sequence[str]
    """Its messages; empty for a close alone."""
    append: Append
    late: bool
    """The stream was known to be closed when it was first sent."""
    acked: bool = False
    new: bool = False


@dataclass(eq=False)
class StreamHistory:
    name: TopicName
    fail: Callable[[str], None]
    is_json: bool
    repeats: bool
    """Requests may come twice: an append without a number may then be stored twice."""
    source: StreamHistory | None = None
    incarnation: str = ""
    """The incarnation, as its maker was told."""
    base: int = 0
    at: dict[int, str] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    seen_end: int = 0
    closed_at: int | None = None
    going: bool = False
    epochs: Counter[str] = field(default_factory=Counter)
    sequences: int = 0

    def sends(self, values: Sequence[str], append: Append) -> Sent:
        sent = Sent(values, append, self.closed_at is not None)
        self.sent.update(dict.fromkeys(values, sent))
        return sent

    def acked(self, sent: Sent, end: int, *, new: bool, closed: bool) -> None:
        """Check the answer "stored". `end`: of the stream; `new`: not a repeat."""
        if new and sent.new:
            self._wrong(f"{sent.append} {sent.values} was stored as new twice")
        if sent.late and sent.values:
            self._wrong(f"{sent.values} was stored behind the close, at {self.closed_at}")
        sent.acked, sent.new = True, sent.new or new
        if sent.append.closes and not closed:
            self._wrong(f"{sent.append} closes it, and it is not told to be closed")
        self.ends(end, closed=closed)

    def ends(self, end: int, *, closed: bool) -> None:
        self.seen_end = max(self.seen_end, end)
        if self.closed_at is not None and self.seen_end > self.closed_at:
            self._wrong(f"it was closed at {self.closed_at}, and goes to {self.seen_end}")
        if not closed:
            return
        if self.seen_end > end or self.closed_at not in (None, end):
            self._wrong(f"it is closed at {end}, and was {self.closed_at}; seen: {self.seen_end}")
        self.closed_at = end

    def shows(self, start: int, values: Sequence[str], following: int) -> None:
        if following - start != len(values):
            self._wrong(f"{len(values)} messages from {start} to {following}")
        for offset, value in enumerate(values, start):
            self._see(offset, value)

    def _see(self, offset: int, value: str) -> None:
        if offset < self.base and self.source is not None:
            self.source._see(offset, value)
        elif value not in self.sent:
            self._wrong(f"{value!r} at {offset} was never sent")
        before = self.at.setdefault(offset, value)
        if before != value:
            self._wrong(f"at {offset} stands {value!r}, and stood {before!r}")

    def check_whole(self, end: int, *, closed: bool) -> None:
        own = [self.at[offset] for offset in range(self.base, end)]
        if self.closed_at not in (None, end):
            self._wrong(f"it was closed at {self.closed_at}, and ends at {end}")
        if self.closed_at is not None and not closed:
            self._wrong(f"it was closed at {self.closed_at}, and is open in the end")
        if end < self.seen_end:
            self._wrong(f"somebody was told {self.seen_end}, and it ends at {end}")
        found = Counter(own)
        for sent in dict.fromkeys(self.sent.values()):
            self._check_times(sent, found)
        last: dict[str, tuple[int, int]] = {}
        at, seq = 0, ""
        while at < len(own):
            sent = self.sent[own[at]]
            if own[at : at + len(sent.values)] != list(sent.values):
                self._wrong(f"of {sent.values} stands {own[at : at + len(sent.values)]} alone")
                return
            at += len(sent.values)
            append = sent.append
            if append.closes and at < len(own):
                self._wrong(f"{own[at]!r} stands behind {sent.values}, which closes it")
            if append.producer is not None:
                before = last.get(append.producer, (-1, -1))
                follows = append.epoch > before[0] and append.sequence == 0
                if not follows and (append.epoch, append.sequence - 1) != before:
                    self._wrong(f"{append} stands behind {before}")
                last[append.producer] = append.epoch, append.sequence
            if append.stream_seq is not None:
                if append.stream_seq <= seq:
                    self._wrong(f"Stream-Seq {append.stream_seq} stands behind {seq}")
                seq = append.stream_seq

    def _check_times(self, sent: Sent, found: Counter[str]) -> None:
        for value in sent.values:
            times = found[value]
            if sent.acked and not times:
                self._wrong(f"{value!r} was acked and is gone")
            counted = sent.append.producer is not None or sent.append.is_first
            if times > 1 and (counted or not self.repeats):
                self._wrong(f"{value!r} is stored {times} times")
            if times and sent.late:
                self._wrong(f"{value!r} was sent when it was closed, at {self.closed_at}")

    def _wrong(self, what: str) -> None:
        self.fail(f"X20 stream {self.name}: {what}")
