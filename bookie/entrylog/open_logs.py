"""Keep a bounded number of entry logs open; close the least recently used log first.

A bookie with 10 TB has 20,000 logs, and sockets need descriptors too. A file in use is never
closed: its descriptor's number goes to the next file, so a read would return another file's bytes.
The lock is never held during a call to the disk.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from octavo.bookie.disk.files import File, NoDescriptorLeft

_SHARE_OF_DESCRIPTORS = 4
"""The rest is for connections and the index."""


def open_logs_max(wanted: int, descriptors_max: int) -> int:
    return max(1, min(wanted, descriptors_max // _SHARE_OF_DESCRIPTORS))


class _OpenLog:
    __slots__ = ("dropped", "file", "reads", "written")

    def __init__(self, file: File, *, written: bool = False) -> None:
        self.file = file
        self.reads = 0
        self.written = written
        self.dropped = False

    @property
    def is_idle(self) -> bool:
        return not self.reads and not self.written


class OpenLogs:
    def __init__(self, open_max: int) -> None:
        self._open_max = open_max
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenLog] = OrderedDict()
        """The most recently used log is last."""
        self._leaving = 0

    def __len__(self) -> int:
        return len(self._open) + self._leaving

    def describe(self) -> dict[str, int]:
        with self._lock:
            reads = sum(log.reads for log in self._open.values())
            over = len(self._open) - max(1, self._open_max)
        return {"reads": reads, "leaving": self._leaving, "over": max(0, over)}

    @contextmanager
    def use(self, log_id: int, open_file: Callable[[], File]) -> Iterator[File]:
        """Lend the open log; without a free descriptor, close idle logs and try again."""
        log = self._begin(log_id) or self._opened(log_id, open_file)
        try:
            yield log.file
        finally:
            self._end(log)

    def _begin(self, log_id: int) -> _OpenLog | None:
        with self._lock:
            log = self._open.get(log_id)
            if log is not None:
                log.reads += 1
                self._open.move_to_end(log_id)
        return log

    def _opened(self, log_id: int, open_file: Callable[[], File]) -> _OpenLog:
        try:
            file = open_file()
        except NoDescriptorLeft:
            self._close(self._take_idle(0))
            file = open_file()
        mine = _OpenLog(file)
        with self._lock:
            log = self._open.setdefault(log_id, mine)
            log.reads += 1
            self._open.move_to_end(log_id)
        if log is not mine:
            file.close()
        self._close(self._take_idle(self._open_max))
        return log

    def _end(self, log: _OpenLog) -> None:
        with self._lock:
            log.reads -= 1
            last = log.dropped and not log.reads
            self._leaving -= last
            over = len(self._open) > self._open_max
        if last:
            log.file.close()
        if over:
            self._close(self._take_idle(self._open_max))

    def _take_idle(self, left_max: int) -> list[_OpenLog]:
        """Take out idle logs, least recently used first, until `left_max` are left."""
        with self._lock:
            excess = max(0, len(self._open) - left_max)
            idle = (log_id for log_id, log in self._open.items() if log.is_idle)
            return [self._open.pop(log_id) for log_id in list(islice(idle, excess))]

    @staticmethod
    def _close(logs: list[_OpenLog]) -> None:
        for log in logs:
            log.file.close()

    def keep_for_writer(self, log_id: int, file: File) -> None:
        """Keep the log open until `written`."""
        with self._lock:
            assert log_id not in self._open
            self._open[log_id] = _OpenLog(file, written=True)
        self._close(self._take_idle(self._open_max))

    def written(self, log_id: int) -> None:
        with self._lock:
            log = self._open.get(log_id)
            if log is not None:
                log.written = False
        self._close(self._take_idle(self._open_max))

    def drop(self, log_id: int) -> None:
        with self._lock:
            log = self._open.pop(log_id, None)
            if log is None:
                return
            log.dropped = True
            last = not log.reads
            self._leaving += not last
        if last:
            log.file.close()

    def close(self) -> None:
        with self._lock:
            logs = list(self._open.values())
            self._open.clear()
        self._close(logs)
