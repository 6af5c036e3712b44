"""The order of each key in a key-shared subscription: which consumer may get which message. Pure.

The messages of a key that are out are its first unacked messages, handed out in one answer. Until
all are acked or given back, no consumer gets more of the key, not even the consumer that has them:
if an answer is lost, its messages would come after later messages. When a message comes back, the
later messages of its key come back too. Then the key belongs to the consumer that has its slot.

Keys are looked up ahead, on demand (`wanted`, `learn`). For a key that is not consumed, only its
first messages are remembered, and the offset from which the rest is looked up again. So a key that
stands still does not hide others, and memory is bounded: about twice `messages_max` messages, and
half as many keys.

A slot is a key hash's first 16 bits. Each consumer has `POINTS` points among the slots, from its
name alone; a slot belongs to the next point at or after it (consistent hashing). So a change of
consumers moves only about its share, and every broker computes the same.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from octavo.broker.state.cursor import Cursor

SLOTS = 65_536
POINTS = 64
_POINT_BYTES = 2
_NAMES_REMEMBERED = 4_096


def hash_of(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def slot_of(key_hash: int) -> int:
    return key_hash >> 48


@lru_cache(_NAMES_REMEMBERED)
def _points(name: str) -> tuple[tuple[int, str], ...]:
    digests = b"".join(
        blake2b(name.encode(errors="surrogatepass"), salt=bytes([number])).digest()
        for number in range(POINTS * _POINT_BYTES // 64)
    )
    slots = {
        int.from_bytes(digests[at : at + _POINT_BYTES], "big")
        for at in range(0, len(digests), _POINT_BYTES)
    }
    return tuple((slot, name) for slot in sorted(slots))


class Slots:
    def __init__(self, names: Iterable[str] = (), before: Slots | None = None) -> None:
        self.names = frozenset(names)
        old = frozenset[str]() if before is None else before.names
        self._points: list[tuple[int, str]] = [] if before is None else before._points
        if gone := old - self.names:
            self._points = [point for point in self._points if point[1] not in gone]
        new = [point for name in self.names - old for point in _points(name)]
        # At the same slot, the first consumer by name wins.
        self._points = sorted(self._points + new) if new else self._points
        self._ends = [slot for slot, _ in self._points]
        self._owners = [name for _, name in self._points]

    def owner(self, slot: int) -> str | None:
        if not self._ends:
            return None
        place = bisect_left(self._ends, slot)
        return self._owners[place if place < len(self._ends) else 0]

    def ranges(self) -> dict[str, list[tuple[int, int]]]:
        """Return the first and last slots of ranges, both included."""
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in self.names}
        if not self._ends:
            return found
        before = -1
        for end, owner in [*zip(self._ends, self._owners, strict=True), (SLOTS - 1, None)]:
            if end > before:
                mine = found[owner or self._owners[0]]
                if mine and mine[-1][1] == before:
                    mine[-1] = (mine[-1][0], end)
                else:
                    mine.append((before + 1, end))
                before = end
        return found


LOOK_MESSAGES = 1_000
_OF_ONE_KEY = 16
"""One key's share, a sixteenth, of all remembered messages."""
Known = tuple[int, int | None]


class Look(NamedTuple):
    start: int
    stop: int
    since: int
    consumer: str = ""
    due: bool = False


class _Key:
    __slots__ = ("hash", "more_from", "offered", "out", "waiting")

    def __init__(self, key_hash: int) -> None:
        self.hash = key_hash
        self.waiting: list[int] = []
        """A heap; a forgotten message stays until it comes to the top."""
        self.out: dict[int, None] = {}
        self.more_from: int | None = None
        """The first message of the key that is not remembered; None: all are."""
        self.offered: tuple[str, int] | None = None


class KeyOrder:
    def __init__(self, cursor: Cursor, messages_max: int) -> None:
        self._cursor = cursor
        self._messages_max = messages_max
        self._slots = Slots()
        self._resets = 0
        self._begin()

    def describe(self) -> dict[str, int]:
        return {"waiting": self._waiting, "returned": len(self._returned)}

    def _begin(self) -> None:
        self.front = self._cursor.committed_offset
        """All messages before this offset were examined."""
        self._keys: dict[int, _Key] = {}
        self._spilled: dict[int, _Key] = {}
        self._known: dict[int, _Key | None] = {}
        self._free: list[int] = []
        self._offers: dict[str, list[tuple[int, int]]] = {}
        self._asleep: dict[int, None] = {}
        self._asleep_free: dict[int, None] = {}
        self._returned: dict[int, None] = {}
        self._due: list[int] = []
        self._put_off: list[int] = []
        self._waiting = 0
        self._resumed_end = 0
        """One past the last message that an earlier owner left leased or delayed."""

    @property
    def ready(self) -> int:
        return len(self._returned) - len(self._asleep) - len(self._asleep_free)

    @property
    def slots(self) -> Slots:
        return self._slots

    @property
    def is_full(self) -> bool:
        return len(self._keys) >= self._messages_max

    def is_left(self, end: int) -> bool:
        if self._cursor.next_unacked(self.front) < end or self._spilled:
            return True
        return bool(self._free or self._due) or self._waiting > len(self._asleep)

    def held_back(self, consumer: str, end: int) -> str | None:
        if self.is_full and self._cursor.next_unacked(self.front) < end:
            return (
                f"{len(self._keys)} keys have messages that are out or wait for their consumers, "
                f"and no more than {self._messages_max} are looked ahead for: ack what is out"
            )
        others = [key for key in self._keys.values() if self._head(key) is not None]
        if not others or any(key.offered and key.offered[0] == consumer for key in others):
            return None
        out = sum(bool(key.out) for key in others)
        asleep = sum(not key.out and self._head(key) in self._asleep for key in others)
        return (
            f"messages of {len(others)} keys wait: of {out} earlier ones are out, of {asleep} the "
            f"first was given back with a delay, {len(others) - out - asleep} are other consumers'"
        )

    @property
    def first_out(self) -> int | None:
        waits = (key for key in self._keys.values() if key.out and self._head(key) is not None)
        return min((min(key.out) for key in waits), default=None)

    def reset(self) -> None:
        self._resets += 1
        self._begin()

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    @property
    def room_for_due(self) -> int:
        return LOOK_MESSAGES - len(self._due)

    def due(self, offset: int) -> None:
        heapq.heappush(self._due, offset)

    def take_put_off(self) -> list[int]:
        put_off, self._put_off = self._put_off, []
        return put_off

    def _learn_due(self, look: Look, found: Iterable[Known], stop: int) -> None:
        due = set()
        while self._due and self._due[0] < stop:
            due.add(heapq.heappop(self._due))
        touched: dict[int, _Key] = {}
        for offset, key_hash in found:
            if offset not in due or offset in self._known or self._cursor.is_acked(offset):
                continue
            if key_hash is None:
                self._add(None, offset)
                continue
            key = self._keys.get(key_hash)
            if key is None and self.is_full:
                self._put_off.append(offset)
                continue
            if key is None:
                key = self._keys[key_hash] = _Key(key_hash)
            if key.more_from is not None and key.more_from <= offset:
                continue
            if len(key.waiting) >= self._most_of(key, look.consumer):
                self._put_off.append(offset)
                continue
            self._add(key, offset)
            touched[key_hash] = key
        for key in touched.values():
            self._offer(key)

    def wanted(self, consumer: str, end: int) -> Look | None:
        while self._due and (self._cursor.is_acked(self._due[0]) or self._due[0] in self._known):
            heapq.heappop(self._due)
        if self._due:
            start = self._due[0]
            stop = min(start + LOOK_MESSAGES, max(self._due) + 1)
            return Look(start, stop, self._resets, consumer, due=True)
        while True:
            behind = [
                key.more_from
                for key in self._spilled.values()
                if key.more_from is not None
                and self._head(key) is None
                and self._may_have(key) == consumer
            ]
            if not behind:
                break
            start = min(behind)
            unacked = min(self._cursor.next_unacked(start), self.front)
            if unacked == start:
                stop = min(self.front, start + LOOK_MESSAGES)
                return Look(start, stop, self._resets, consumer)
            self._looked_at(start, unacked, {})
        self.front = max(self.front, min(self._cursor.next_unacked(self.front), end))
        # Keys before `_resumed_end` were within the last owner's bound.
        if self.front >= end or (self.is_full and self.front >= self._resumed_end):
            return None
        return Look(self.front, min(end, self.front + LOOK_MESSAGES), self._resets, consumer)

    def learn(self, look: Look, found: Iterable[Known], stop: int) -> bool:
        """Take the keys of messages from `look.start` on, ascending; missing offsets are not the
        subscription's.

        Returns False if there was a reset since the request.
        """
        if look.since != self._resets:
            return False
        if look.due:
            self._learn_due(look, found, stop)
            return True
        refused: dict[int, None] = {}
        touched: dict[int, _Key] = {}
        for offset, key_hash in found:
            if self._cursor.is_acked(offset):
                continue
            if offset in self._known:
                if (resumed := self._known[offset]) is not None:
                    touched[resumed.hash] = resumed
                continue
            if key_hash is None:
                if offset >= self.front:
                    self._add(None, offset)
                continue
            key = self._keys.get(key_hash)
            if not self._is_next(key, offset, look.start) or key_hash in refused:
                continue
            if key is None:
                key = self._keys[key_hash] = _Key(key_hash)
            if len(key.waiting) >= self._most_of(key, look.consumer):
                key.more_from = offset
                self._spilled[key_hash] = key
                refused[key_hash] = None
                continue
            self._add(key, offset)
            touched[key_hash] = key
        self._looked_at(look.start, stop, refused)
        self.front = max(self.front, stop)
        for key in touched.values():
            self._offer(key)
        return True

    def _is_next(self, key: _Key | None, offset: int, start: int) -> bool:
        if key is None or key.more_from is None:
            return offset >= self.front
        return start <= key.more_from <= offset < self.front

    def _most_of(self, key: _Key, asks: str) -> int:
        """Return how many messages of a key to remember.

        The asking consumer takes all of its messages at once, so all are remembered: otherwise
        each call would read the same entries again.
        """
        if self._waiting < 2 * self._messages_max and self._may_have(key) == asks:
            return LOOK_MESSAGES
        full = self._waiting >= self._messages_max
        return 1 if full else max(1, self._messages_max // _OF_ONE_KEY)

    def _looked_at(self, start: int, stop: int, refused: dict[int, None]) -> None:
        for key in list(self._spilled.values()):
            assert key.more_from is not None
            if start <= key.more_from < stop and key.hash not in refused:
                key.more_from = stop if stop < self.front else None
                if key.more_from is None:
                    del self._spilled[key.hash]
                    self._offer(key)

    def _add(self, key: _Key | None, offset: int) -> None:
        self._known[offset] = key
        if key is None:
            heapq.heappush(self._free, offset)
        else:
            self._waiting += 1
            heapq.heappush(key.waiting, offset)

    def belong_to(self, names: Iterable[str]) -> None:
        names = frozenset(names)
        if names == self._slots.names:
            return
        self._slots = Slots(names, self._slots)
        self._offers = {name: self._offers[name] for name in self._offers if name in names}
        if sum(map(len, self._offers.values())) > 2 * len(self._keys):
            self._offers = {}
            for key in self._keys.values():
                key.offered = None
        for key in list(self._keys.values()):
            if key.offered is None or key.offered[0] != self._may_have(key):
                self._offer(key)

    def take(self, consumer: str, room: int) -> list[int]:
        taken: list[int] = []
        out: dict[int, _Key] = {}
        while len(taken) < room:
            free, key = self._first_free(), self._first_offer(consumer)
            if key is None and free is None:
                break
            if key is None or (free is not None and free < key.waiting[0]):
                offset = heapq.heappop(self._free)
            else:
                heapq.heappop(self._offers[consumer])
                offset = heapq.heappop(key.waiting)
                self._waiting -= 1
                key.out[offset] = None
                self._offer_more(key, consumer)
                out[key.hash] = key
            self._returned.pop(offset, None)
            taken.append(offset)
        for key in out.values():
            self._offer(key)
        return taken

    def hash_of(self, offset: int) -> int | None:
        key = self._known.get(offset)
        return None if key is None else key.hash

    def resume(self, offset: int, key_hash: int | None, *, out: bool) -> None:
        """Take over a message that the last owner had leased or delayed.

        When it comes back, no consumer gets it before the messages before it were examined.
        """
        key = None
        if key_hash is not None and (key := self._keys.get(key_hash)) is None:
            key = self._keys[key_hash] = _Key(key_hash)
        self._known[offset] = key
        self._resumed_end = max(self._resumed_end, offset + 1)
        if key is not None and out:
            key.out[offset] = None
        elif not out:
            (self._asleep_free if key is None else self._asleep)[offset] = None
            self._returned[offset] = None
            if key is not None:
                self._waiting += 1
                heapq.heappush(key.waiting, offset)

    def back(self, offset: int, *, asleep: bool) -> list[int]:
        """Note that a message is back, `asleep` until `wake`.

        Returns the key's later messages that were out: the caller ends their leases.
        """
        key = self._known[offset]
        if asleep:
            (self._asleep_free if key is None else self._asleep)[offset] = None
        self._return(key, offset)
        if key is None:
            return []
        later = sorted(one for one in key.out if one > offset)
        for one in later:
            self._return(key, one)
        self._offer(key)
        return later

    def wake(self, offset: int) -> None:
        if self._asleep_free.pop(offset, self) is None:
            heapq.heappush(self._free, offset)
        elif self._asleep.pop(offset, self) is None:
            key = self._known[offset]
            assert key is not None
            self._offer(key)

    def acked(self, offset: int) -> None:
        if offset not in self._known:
            return
        key = self._known[offset]
        if key is None or offset not in key.out:
            self._forget(offset)
        else:
            del self._known[offset]
            del key.out[offset]
        if key is not None:
            self._offer(key)

    def passed(self) -> None:
        for offset in [one for one in self._asleep_free if self._cursor.is_acked(one)]:
            self._forget(offset)
        for key in list(self._keys.values()):
            self._offer(key)

    def _return(self, key: _Key | None, offset: int) -> None:
        self._returned[offset] = None
        if key is not None:
            del key.out[offset]
            self._waiting += 1
            heapq.heappush(key.waiting, offset)
        elif offset not in self._asleep_free:
            heapq.heappush(self._free, offset)

    def _forget(self, offset: int) -> None:
        if offset in self._known and self._known.pop(offset) is not None:
            self._waiting -= 1
        self._returned.pop(offset, None)
        self._asleep.pop(offset, None)
        self._asleep_free.pop(offset, None)

    def _head(self, key: _Key) -> int | None:
        while key.waiting:
            offset = key.waiting[0]
            if self._known.get(offset) is key and not self._cursor.is_acked(offset):
                return offset
            heapq.heappop(key.waiting)
            self._forget(offset)
        return None

    def _first_free(self) -> int | None:
        while self._free:
            offset = self._free[0]
            if offset not in self._known:
                heapq.heappop(self._free)
            elif self._cursor.is_acked(offset):
                heapq.heappop(self._free)
                self._forget(offset)
            else:
                return offset
        return None

    def _first_offer(self, consumer: str) -> _Key | None:
        offers = self._offers.get(consumer)
        while offers:
            head, key_hash = offers[0]
            key = self._keys.get(key_hash)
            if key is not None and key.offered == (consumer, head):
                if self._head(key) == head:
                    return key
                self._offer(key)
            heapq.heappop(offers)
        return None

    def _may_have(self, key: _Key) -> str | None:
        return None if key.out else self._slots.owner(slot_of(key.hash))

    def _offer_more(self, key: _Key, consumer: str) -> None:
        head = self._head(key)
        key.offered = None
        if head is not None and head not in self._asleep and head < self.front:
            key.offered = (consumer, head)
            heapq.heappush(self._offers[consumer], (head, key.hash))

    def _offer(self, key: _Key) -> None:
        head = self._head(key)
        if head is None and not key.out and key.more_from is None:
            self._keys.pop(key.hash, None)
        # Beyond the front, only messages that an earlier owner left are known.
        cannot_go = head is None or head in self._asleep or head >= self.front
        consumer = None if cannot_go else self._may_have(key)
        if head is None or consumer is None:
            key.offered = None
        elif key.offered != (consumer, head):
            key.offered = (consumer, head)
            heapq.heappush(self._offers.setdefault(consumer, []), (head, key.hash))
