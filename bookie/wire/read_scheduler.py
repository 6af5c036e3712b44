"""Give the connections of a bookie their turns to read.

A turn of the loop answers a bounded number of reads and bytes, so that writers do not wait. A read
that needs a disk takes one of a bounded number of tasks. The answer is TOO_MANY_REQUESTS when a
connection gets no turn within `wait_ms_max`, or when too many requests wait.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from octavo.bookie.back_pressure import Budget

_READS_PER_TURN = 64
_BYTES_PER_TURN = 1024 * 1024


class Member(Protocol):
    @property
    def wants_turn(self) -> bool: ...

    def serve(self) -> int | None:
        """Return the bytes answered, or None if it needs a task and none is free."""

    def refuse_waiting(self) -> None: ...


class ReadScheduler:
    def __init__(
        self,
        answers: Budget,
        *,
        waiting_max: int,
        tasks_max: int,
        wait_ms_max: int,
    ) -> None:
        self._answers = answers
        self._waiting_max = waiting_max
        self._tasks_max = tasks_max
        self._wait_s_max = wait_ms_max / 1000
        self._loop = asyncio.get_running_loop()
        self._ready: dict[Member, float] = {}
        """Connections that wait for a turn, in the order of turns, and since when."""
        self._blocked: dict[Member, float] = {}
        """Connections that wait for a task, and since when."""
        self._turn_due = False
        self._expiry: asyncio.TimerHandle | None = None
        self.waiting = 0
        self.tasks = 0
        """Requests that run, without long polls."""
        answers.when_room(self._soon)

    def describe(self) -> dict[str, int]:
        return {
            "ready": len(self._ready),
            "blocked": len(self._blocked),
            "waiting": self.waiting,
            "tasks": self.tasks,
        }

    def waits_in_vain(self) -> str:
        """Name work that could run; empty when there is none."""
        if self._turn_due:
            return ""
        if self._ready and not self._answers.is_spent:
            return "connections wait for a turn that is not due"
        waits = self._blocked and self.has_task
        return "connections wait for a task, and one is free" if waits else ""

    def is_full(self, *, urgent: bool) -> bool:
        """Whether no more requests may wait; urgent requests have twice the room."""
        return self.waiting >= (2 * self._waiting_max if urgent else self._waiting_max)

    @property
    def has_task(self) -> bool:
        return self.tasks < self._tasks_max

    def join(self, member: Member) -> None:
        if member not in self._ready and member not in self._blocked:
            self._ready[member] = self._loop.time()
        self._soon()

    def leave(self, member: Member) -> None:
        self._ready.pop(member, None)
        self._blocked.pop(member, None)

    def task_ended(self) -> None:
        self.tasks -= 1
        self._unblock()

    def _unblock(self) -> None:
        """Let the connection that waits longest for a task try again."""
        if self._blocked and self.has_task:
            member = next(iter(self._blocked))
            self._ready[member] = self._blocked.pop(member)
            self._soon()

    def close(self) -> None:
        self._ready.clear()
        self._blocked.clear()
        if self._expiry is not None:
            self._expiry.cancel()

    def _soon(self) -> None:
        if self._ready and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        reads = size = 0
        ready, now = self._ready, self._loop.time()
        while (
            ready
            and reads < _READS_PER_TURN
            and size < _BYTES_PER_TURN
            and not self._answers.is_spent
        ):
            member = next(iter(ready))
            since = ready.pop(member)
            answered = member.serve()
            reads += 1
            if answered is None:
                self._blocked[member] = since
            else:
                size += answered
                if member.wants_turn:
                    ready[member] = now
        self._unblock()  # the turn may have needed no task
        if ready and not self._answers.is_spent:
            self._soon()
        if (ready or self._blocked) and self._expiry is None:
            self._expiry = self._loop.call_later(self._wait_s_max / 2, self._expire)

    def _expire(self) -> None:
        """Refuse connections without a turn: their clients can ask another bookie."""
        self._expiry = None
        limit = self._loop.time() - self._wait_s_max
        for line in (self._ready, self._blocked):
            for member in [member for member, since in line.items() if since <= limit]:
                del line[member]
                member.refuse_waiting()
        if self._ready or self._blocked:
            self._expiry = self._loop.call_later(self._wait_s_max / 2, self._expire)
