"""The versioned tree of the simulated metadata store: pure, with its whole past. Callers check
paths.

Every change has a number (`seq`), and reads may ask for the tree at an earlier one, as a server
that lags behind answers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from octavo.metadata.paths import parent_of, parents_of
from octavo.metadata.store import (
    ANY_VERSION,
    MetadataError,
    Record,
    RecordExists,
    RecordNotFound,
    VersionConflict,
)
from octavo.metadata.watching import WatchKey

Author = tuple[str, int]
"""A process's name and its store's number."""
Copy = dict[str, tuple[Record, int]]
"""Path → its record and the number of the next sequence record below it."""


class Change(NamedTuple):
    time_s: float
    seq: int
    path: str
    value: bytes | None
    """None when the record was deleted."""
    version: int
    """After the change; of a deleted record, its last."""
    by: str
    """The process whose call, or whose session's end, made the change."""
    store: int
    """The number of its store: a restarted process has a new number."""


class _Node:
    __slots__ = ("names", "names_seq", "next_sequence", "owner", "past", "record")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.owner: int | None = None
        self.past: list[tuple[int, Record | None]] = []
        self.names: dict[str, _Node] = {}
        self.names_seq = 0
        self.next_sequence = 0

    def at(self, seq: int) -> Record | None:
        place = bisect_right(self.past, seq, key=lambda row: row[0])
        return self.past[place - 1][1] if place else None


class Tree:
    """Records by path. `changed` hears every change at once, with the watch keys it wakes."""

    def __init__(
        self, now_s: Callable[[], float], changed: Callable[[Change, tuple[WatchKey, ...]], None]
    ) -> None:
        self._now_s = now_s
        self._changed = changed
        self._nodes: dict[str, _Node] = {"/": _Node()}
        self._owned: dict[int, dict[str, None]] = {}
        self._times: list[float] = []
        self.seq = 0
        self.history: list[Change] = []

    # -- reads

    def seq_at(self, time_s: float) -> int:
        """Return the number of the last change until then."""
        return bisect_right(self._times, time_s)

    def last_change(self, key: WatchKey) -> int:
        node = self._nodes.get(key.path)
        if node is None:
            return 0
        if key.of_children:
            return node.names_seq
        return node.past[-1][0] if node.past else 0

    def get(self, path: str, seq: int) -> Record:
        node = self._nodes.get(path)
        record = None
        if node is not None:
            record = node.record if seq == self.seq else node.at(seq)
        if record is None:
            raise RecordNotFound(f"no record at {path}")
        return record

    def changed_s(self, path: str, seq: int) -> float:
        node = self._nodes[path]
        place = bisect_right(node.past, seq, key=lambda row: row[0])
        return self._times[node.past[place - 1][0] - 1]

    def children(self, path: str, seq: int) -> list[str]:
        node = self._nodes.get(path)
        if node is None:
            return []
        if seq == self.seq:
            return sorted(name for name, child in node.names.items() if child.record is not None)
        return sorted(name for name, child in node.names.items() if child.at(seq) is not None)

    def records(self) -> dict[str, Record]:
        return {path: node.record for path, node in self._nodes.items() if node.record is not None}

    # -- copies

    def copy(self) -> Copy:
        return {
            path: (node.record, node.next_sequence)
            for path, node in self._nodes.items()
            if node.record is not None and node.owner is None
        }

    def put_back(self, copy: Copy) -> None:
        """Restore the tree of a `copy`. No watch hears of it: all sessions have ended, and a
        process that reconnects reads everything again."""
        self._owned.clear()
        for path, node in self._nodes.items():
            record, next_sequence = copy.get(path, (None, 0))
            node.owner = None
            node.next_sequence = next_sequence
            if node.record == record:
                continue
            self.seq += 1
            self._times.append(self._now_s())
            if (node.record is None) is not (record is None):
                self._nodes[parent_of(path)].names_seq = self.seq
            node.record = record
            node.past.append((self.seq, record))

    # -- changes

    def create(
        self,
        path: str,
        value: bytes,
        *,
        session: int | None,
        sequence: bool,
        by: Author,
        beside: str | None = None,
    ) -> str:
        parent = self._nodes.get(parent_of(path))
        stands = parent is not None and parent.record is not None and parent.owner is None
        for above in () if stands else parents_of(path):
            node = self._nodes.get(above)
            if node is None or node.record is None:
                self._set(above, Record(b"", 0), by)
            elif node.owner is not None:
                raise MetadataError(f"{above} is ephemeral: no record can be made below it")
        if sequence:
            parent = self._nodes[parent_of(path)]  # made by now
            path = f"{path}{parent.next_sequence:010d}"
        node = self._nodes.get(path)
        if node is not None and node.record is not None:
            raise RecordExists(f"a record already stands at {path}")
        self._set(path, Record(value, 0), by)
        if session is not None:
            self._nodes[path].owner = session
            self._owned.setdefault(session, {})[path] = None
        if beside is not None:
            self.create(beside, b"", session=None, sequence=False, by=by)
        return path

    def put(
        self, path: str, value: bytes, version: int, *, by: Author, beside: str | None = None
    ) -> int:
        if beside is not None:
            self._expect(beside, ANY_VERSION)
        found = self._expect(path, version)
        self._set(path, Record(value, found.version + 1), by)
        return found.version + 1

    def delete(self, path: str, version: int, *, by: Author, beside: str | None = None) -> None:
        self._expect(path, version)
        if beside is not None:
            self._expect(beside, ANY_VERSION)
        if any(child.record is not None for child in self._nodes[path].names.values()):
            raise RecordExists(f"{path} cannot be deleted: there are records below it")
        self._set(path, None, by)
        if beside is not None:
            self._set(beside, None, by)

    def end_session(self, session: int, *, by: Author) -> None:
        for path in self._owned.pop(session, {}):
            node = self._nodes[path]
            if node.record is not None and node.owner == session:
                self._set(path, None, by)

    def _expect(self, path: str, version: int) -> Record:
        node = self._nodes.get(path)
        if node is None or node.record is None:
            raise RecordNotFound(f"no record at {path}")
        if version not in (ANY_VERSION, node.record.version):
            raise VersionConflict(
                f"{path} has version {node.record.version}, not the expected {version}"
            )
        return node.record

    def _set(self, path: str, record: Record | None, by: Author) -> None:
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = _Node()
        was = node.record
        self.seq += 1
        time_s = self._now_s()
        self._times.append(time_s)
        node.record = record
        node.past.append((self.seq, record))
        keys: tuple[WatchKey, ...] = (WatchKey(path, False),)
        if was is None or record is None:
            node.owner = None
            node.next_sequence = 0
            above = parent_of(path)
            parent = self._nodes[above]
            parent.names[path.rpartition("/")[2]] = node
            parent.names_seq = self.seq
            if record is not None:  # as in ZooKeeper, only creations take a number
                parent.next_sequence += 1
            keys = (WatchKey(path, False), WatchKey(above, True))
        value, version = (None, was.version if was else 0) if record is None else record
        change = Change(time_s, self.seq, path, value, version, *by)
        self.history.append(change)
        self._changed(change, keys)
