"""A partition as a chain of ledgers: base offsets, roll-over, trimming, offset to ledger. Pure.

    offset   0          1000        1000+n
             |  ledger 7  |  ledger 9  |  ledger 12 (open) …

Every link but the last is closed, so its count is known and the next link starts where it ends:
offsets are dense. Entries store offsets relative to their ledger's base; only the chain knows
absolute ones, so that a closed ledger can be spliced into a chain as it is. A chain is a value:
each change gives a new one, which becomes true by compare-and-set of the partition's record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from octavo.metadata.topics import PartitionLedger
from octavo.metadata.transactions import PrivateLedger
from octavo.protocol.batch import BatchHeader


def end_offset(link: PartitionLedger) -> int:
    """One past the last offset of a closed ledger."""
    assert link.count is not None, f"ledger {link.ledger_id} is open"
    return link.base_offset + link.count


class RolloverPolicy(NamedTuple):
    """A ledger that reaches any of these is closed."""

    bytes_max: int
    entries_max: int
    age_ms_max: int

    def due(self, payload_bytes: int, entries: int, age_ms: int) -> bool:
        """Whether it is time. An empty ledger is never rolled over."""
        return entries > 0 and (
            payload_bytes >= self.bytes_max
            or entries >= self.entries_max
            or age_ms >= self.age_ms_max
        )


class Contents(NamedTuple):
    """What a ledger holds: messages, payload bytes, oldest and newest timestamp (-1: none).

    `disorder_ms`: as in `PartitionLedger`. A batch's timestamps are what its header says: its
    producer's word.
    """

    messages: int = 0
    payload_bytes: int = 0
    first_ms: int = -1
    last_ms: int = -1
    disorder_ms: int = 0

    def plus(self, header: BatchHeader, payload_bytes: int) -> Contents:
        """With one more batch."""
        first, newest = header.first_timestamp, header.max_timestamp
        if not self.messages:
            return Contents(header.record_count, payload_bytes, first, newest)
        return Contents(
            self.messages + header.record_count,
            self.payload_bytes + payload_bytes,
            min(self.first_ms, first),
            max(self.last_ms, newest),
            max(self.disorder_ms, self.last_ms - newest),
        )


class RetentionPolicy(NamedTuple):
    """What may be trimmed; None keeps without limit."""

    age_ms: int | None
    payload_bytes: int | None


def measured(link: PartitionLedger, contents: Contents) -> PartitionLedger:
    """The link, with the timestamps of what its ledger was found to hold."""
    return replace(
        link,
        first_ms=contents.first_ms,
        last_ms=contents.last_ms,
        disorder_ms=contents.disorder_ms,
    )


def is_measured(link: PartitionLedger) -> bool:
    """Whether every batch of a closed ledger was looked at for the link's timestamps."""
    return link.disorder_ms >= 0


def is_older(link: PartitionLedger, age_ms: int, now_ms: int) -> bool:
    """Whether all messages of a closed ledger are older than that, as far as is known.

    A message is as old as its timestamp says. One from the future, which must not keep all behind
    it, and one that says of no time (-1) have only their arrival, by the date at which the ledger
    was found closed. A clock that was behind then has taken every message for one of those: what
    has been stamped since that date, and is not from the future, is not older than its timestamp.
    """
    if link.aging_since_ms is not None:
        stamped_ms = link.last_ms if link.last_ms <= now_ms else -1
        if now_ms - max(link.aging_since_ms, stamped_ms) > age_ms:
            return True
    return is_measured(link) and link.first_ms >= 0 and now_ms - link.last_ms > age_ms


class Chain:
    """The links in order. Immutable; `trimmed_to` is the earliest offset when it has no links."""

    __slots__ = ("_bases", "links", "trimmed_to")

    def __init__(self, links: Iterable[PartitionLedger] = (), trimmed_to: int = 0) -> None:
        self.links = tuple(links)
        self.trimmed_to = trimmed_to
        for before, after in zip(self.links, self.links[1:], strict=False):
            assert before.count is not None, f"ledger {before.ledger_id} is followed but not closed"
            assert end_offset(before) == after.base_offset, (
                f"ledger {before.ledger_id} ends at {end_offset(before)}, "
                f"ledger {after.ledger_id} starts at {after.base_offset}"
            )
        assert not self.links or self.links[0].base_offset >= trimmed_to
        self._bases = [link.base_offset for link in self.links]

    @property
    def earliest_offset(self) -> int:
        """The first offset that is left."""
        return self.links[0].base_offset if self.links else self.trimmed_to

    @property
    def last(self) -> PartitionLedger | None:
        """The newest link."""
        return self.links[-1] if self.links else None

    @property
    def end_offset(self) -> int:
        """One past the last offset; the newest ledger must be closed."""
        return end_offset(self.links[-1]) if self.links else self.trimmed_to

    @property
    def closed_bytes(self) -> int:
        """Payload of the closed ledgers."""
        return sum(link.bytes for link in self.links)

    def find(self, offset: int) -> PartitionLedger:
        """The ledger whose range covers `offset`: the newest that starts at or before it."""
        assert self.links
        assert offset >= self.earliest_offset
        return self.links[bisect_right(self._bases, offset) - 1]

    def link_of(self, ledger_id: int) -> PartitionLedger | None:
        """The link of a ledger; None when the chain does not hold it (any more)."""
        return next((link for link in self.links if link.ledger_id == ledger_id), None)

    def after(self, ledger_id: int) -> PartitionLedger | None:
        """The link that follows a ledger."""
        for link, following in zip(self.links, self.links[1:], strict=False):
            if link.ledger_id == ledger_id:
                return following
        return None

    def closing_last(self, contents: Contents, closed_ms: int) -> Chain:
        """With the newest ledger closed. A ledger without messages leaves the chain."""
        last = self.links[-1]
        assert last.count is None
        if contents.messages == 0:
            rest = self.links[:-1]
            return Chain(rest, self.trimmed_to if rest else last.base_offset)
        closed = replace(
            last,
            count=contents.messages,
            bytes=contents.payload_bytes,
            closed_ms=closed_ms,
        )
        return Chain((*self.links[:-1], measured(closed, contents)), self.trimmed_to)

    def appending(self, ledger_id: int) -> Chain:
        """With a new open ledger, which starts where the last one ends."""
        assert self.link_of(ledger_id) is None
        return Chain((*self.links, PartitionLedger(ledger_id, self.end_offset)), self.trimmed_to)

    def splicing(self, ledgers: Iterable[PrivateLedger], closed_ms: int) -> Chain:
        """With closed ledgers that were written beforehand, where the chain ends.

        The newest ledger must be closed: those who publish go on in one that comes after these.
        """
        links = list(self.links)
        base = self.end_offset
        for one in ledgers:
            assert self.link_of(one.ledger_id) is None, f"ledger {one.ledger_id} is there already"
            assert one.count > 0, f"ledger {one.ledger_id} is empty"
            links.append(
                PartitionLedger(
                    one.ledger_id, base, one.count, one.bytes, one.first_ms, one.last_ms,
                    closed_ms, spliced=True, disorder_ms=one.disorder_ms,
                )
            )  # fmt: skip
            base += one.count
        return Chain(links, self.trimmed_to)

    def trimming(
        self, policy: RetentionPolicy, now_ms: int, open_bytes: int = 0, limit: int | None = None
    ) -> Chain:
        """Without the oldest closed ledgers that retention no longer covers.

        By time, a ledger goes when its newest message is known to be too old; by size, while what
        would be left still holds at least the bytes to keep. The newest ledger always stays, and so
        does every offset from `limit` on: what a subscription has not acked is not trimmed.
        """
        keep = self._covered_from(policy, now_ms, open_bytes, limit)
        if not keep:
            return self
        return Chain(self.links[keep:], self.links[keep].base_offset)

    def to_measure(
        self, policy: RetentionPolicy, now_ms: int, open_bytes: int = 0, limit: int | None = None
    ) -> PartitionLedger | None:
        """The ledger that `trimming` keeps only because nobody knows its newest message."""
        link = self.links[self._covered_from(policy, now_ms, open_bytes, limit)]
        unacked = limit is not None and link.count is not None and end_offset(link) > limit
        if link.count is None or unacked or is_measured(link) or policy.age_ms is None:
            return None
        # Its true newest message is not older than the one that is known.
        may_be_old = link.first_ms >= 0 and now_ms - link.last_ms > policy.age_ms
        return link if may_be_old else None

    def dating(self, now_ms: int) -> Chain:
        """With the closed ledgers dated whose messages do not say how old they are.

        `now_ms` must be a time that can be trusted: from then on they age by it.
        """
        links = tuple(
            replace(link, aging_since_ms=now_ms)
            if link.count is not None
            and link.aging_since_ms is None
            and (link.first_ms < 0 or link.last_ms > now_ms)
            else link
            for link in self.links
        )
        return self if links == self.links else Chain(links, self.trimmed_to)

    def _covered_from(
        self, policy: RetentionPolicy, now_ms: int, open_bytes: int, limit: int | None
    ) -> int:
        """The number of the first link that stays."""
        total = self.closed_bytes + open_bytes
        for number, link in enumerate(self.links[:-1]):
            old = policy.age_ms is not None and is_older(link, policy.age_ms, now_ms)
            large = policy.payload_bytes is not None and total - link.bytes >= policy.payload_bytes
            unacked = limit is not None and end_offset(link) > limit
            if unacked or not (old or large):
                return number
            total -= link.bytes
        return max(0, len(self.links) - 1)

    def measuring(self, ledger_id: int, contents: Contents) -> Chain:
        """With the timestamps of a closed ledger, if the chain still holds it."""
        return Chain(
            (one if one.ledger_id != ledger_id else measured(one, contents) for one in self.links),
            self.trimmed_to,
        )

    def dropped_in(self, newer: Chain) -> list[int]:
        """The ledgers that are here but not in `newer`."""
        kept = {link.ledger_id for link in newer.links}
        return [link.ledger_id for link in self.links if link.ledger_id not in kept]
