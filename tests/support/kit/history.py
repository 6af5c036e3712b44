"""The requests of a cluster's users and their answers: the input of every checker. An
operation without a completion is `info` (outcome unknown). Steps, not clocks, give the order;
times serve readers of a report, and merge the histories of several processes.
`History(sink=file)` writes each event at once as a line of JSON, so that a killed process
loses none."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

NEVER = 1 << 62
"""The completion step of an operation with an unknown outcome."""


class Call(enum.StrEnum):
    """A kind of request. `log` is a topic's partition, a ledger, or a register's key."""

    # Topics. `group` is the subscription, or "" for a direct reader of the log.
    SEND = "send"
    """value: the message; result: its offset, or None when the broker had forgotten it."""
    POLL = "poll"
    """Ordered read. result: [(offset, message)]; value: the requested offset, or None to
    continue."""
    RECEIVE = "receive"
    """Read in any order (a shared subscription). result: [(offset, message)]."""
    SEEK = "seek"
    ACK = "ack"
    """value: offsets; result: the refused offsets, or None."""
    ACK_UP_TO = "ack_up_to"
    MARK = "mark"
    """result: the subscription's committed offset, before which everything is acked."""
    RESET = "reset"
    """value: the position to which the subscription is moved, or at which it is created."""
    DRAIN = "drain"
    """After healing, the group (for a ledger: the process) has read to the end."""

    # Ledgers.
    ADD = "add"
    """value: the content; result: the entry's id."""
    READ = "read"
    """result: [(entry, content)], content None for "no such entry"."""
    LAC = "lac"
    """result: the last add confirmed that the process now knows."""
    FENCE = "fence"
    """Ok when enough bookies are fenced: an add that begins now can never be acked."""
    CLOSE = "close"
    """result: the last entry, or (last entry, length), of the closed ledger."""
    REPLICA = "replica"
    """The content of a bookie's disk. result: [(entry, content)]."""

    # Registers with compare-and-set: see linearizability.py.
    GET = "get"
    PUT = "put"
    CAS = "cas"


LISTS_OF_PAIRS = (Call.POLL, Call.RECEIVE, Call.READ, Call.REPLICA)


@dataclass(slots=True, eq=False)
class Operation:
    process: str
    call: Call
    log: str
    value: Any
    invoked: int
    invoked_at: float
    group: str = ""
    key: str | None = None
    outcome: str = "info"
    result: Any = None
    completed: int = NEVER
    completed_at: float | None = None

    @property
    def is_ok(self) -> bool:
        return self.outcome == "ok"

    def __str__(self) -> str:
        whose = f" for {self.group}" if self.group else ""
        asked = "" if self.value is None else f" {_shortened(self.value)}"
        answer = "" if self.result is None else f" {_shortened(self.result)}"
        until = "?" if self.completed == NEVER else self.completed
        return (
            f"{self.process}: {self.call}{asked} on {self.log or '?'}{whose} "
            f"→ {self.outcome}{answer} [{self.invoked}–{until}]"
        )


class History:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        definite: tuple[type[BaseException], ...] = (),
        sink: TextIO | None = None,
    ) -> None:
        self.operations: list[Operation] = []
        self._clock = clock
        self._definite = definite
        self._sink = sink
        self._step = 0

    def __len__(self) -> int:
        return len(self.operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def invoke(
        self,
        process: str,
        call: Call,
        log: str = "",
        value: Any = None,
        *,
        group: str = "",
        key: str | None = None,
    ) -> Operation:
        """Note a call before it is sent. `log` may be set later, when the answer names it."""
        step, now = self._next()
        one = Operation(process, call, log, value, step, now, group, key)
        self.operations.append(one)
        if self._sink is not None:
            self._write(_invocation(one))
        return one

    def ok(self, one: Operation, result: Any = None, *, log: str | None = None) -> Operation:
        if log is not None:
            one.log = log
        return self._complete(one, "ok", result)

    def fail(self, one: Operation, why: Any = None) -> Operation:
        return self._complete(one, "fail", why)

    def info(self, one: Operation, why: Any = None) -> Operation:
        return self._complete(one, "info", why)

    @contextmanager
    def during(
        self,
        process: str,
        call: Call,
        log: str = "",
        value: Any = None,
        *,
        group: str = "",
        key: str | None = None,
    ) -> Iterator[Operation]:
        """Complete as ok with the `result` set inside; an exception is `fail` if definite,
        else `info`."""
        one = self.invoke(process, call, log, value, group=group, key=key)
        try:
            yield one
        except self._definite as error:
            self.fail(one, str(error) or type(error).__name__)
            raise
        except BaseException as error:
            self.info(one, str(error) or type(error).__name__)
            raise
        self.ok(one, one.result)

    def add_done(
        self,
        process: str,
        call: Call,
        log: str = "",
        value: Any = None,
        result: Any = None,
        *,
        group: str = "",
        key: str | None = None,
    ) -> Operation:
        one = self.invoke(process, call, log, value, group=group, key=key)
        return self.ok(one, result)

    def lines(self) -> Iterator[str]:
        events: list[tuple[int, Operation]] = []
        for one in self.operations:
            events.append((one.invoked, one))
            if one.completed_at is not None:
                events.append((_completion_step(one), one))
        events.sort(key=lambda event: event[0])
        for step, one in events:
            shown = _invocation(one) if step == one.invoked else _completion(one, step)
            yield json.dumps(shown, separators=(",", ":"))

    @classmethod
    def load(cls, lines: Iterable[str]) -> History:
        """Read lines written by `lines` or a sink, without a last line that is cut short."""
        history = cls()
        pending: dict[int, Operation] = {}
        rest = iter(lines)
        for line in rest:
            try:
                event = json.loads(line)
            except ValueError:
                if any(True for _ in rest):
                    raise
                break
            history._replay(event, pending)
        return history

    @classmethod
    def merge(cls, histories: Iterable[History]) -> History:
        """Merge histories of several processes of a machine by time. Equal times are concurrent."""
        events: list[tuple[float, int, int, Operation]] = []
        for history in histories:
            for one in history.operations:
                events.append((one.invoked_at, 0, len(events), one))
                if one.completed_at is not None:
                    events.append((one.completed_at, 1, len(events), one))
        merged = cls()
        for _, completes, _, one in sorted(events, key=lambda event: event[:3]):
            merged._step += 1
            if not completes:
                one.invoked = merged._step
                merged.operations.append(one)
            elif one.outcome != "info":
                one.completed = merged._step
        return merged

    def _next(self) -> tuple[int, float]:
        self._step += 1
        return self._step, self._clock()

    def _complete(self, one: Operation, outcome: str, result: Any) -> Operation:
        assert one.completed_at is None, f"completed twice: {one}"
        step, one.completed_at = self._next()
        one.outcome, one.result = outcome, result
        if outcome != "info":
            one.completed = step
        if self._sink is not None:
            self._write(_completion(one, step))
        return one

    def _write(self, event: dict[str, Any]) -> None:
        assert self._sink is not None
        self._sink.write(json.dumps(event, separators=(",", ":")) + "\n")
        self._sink.flush()

    def _replay(self, event: dict[str, Any], pending: dict[int, Operation]) -> None:
        step = self._step = event["step"]
        if "call" in event:
            one = Operation(
                event["process"],
                Call(event["call"]),
                event.get("log", ""),
                event.get("value"),
                step,
                event["at"],
                event.get("group", ""),
                event.get("key"),
            )
            pending[step] = one
            self.operations.append(one)
            return
        one = pending.pop(event["of"])
        one.completed_at = event["at"]
        one.outcome = event["outcome"]
        if one.outcome != "info":
            one.completed = step
        one.log = event.get("log", one.log)
        result = event.get("result")
        if one.call in LISTS_OF_PAIRS and one.outcome == "ok" and result is not None:
            result = [tuple(pair) for pair in result]
        elif one.call == Call.CLOSE and isinstance(result, list):
            result = tuple(result)
        one.result = result


def _completion_step(one: Operation) -> int:
    """An `info` stores none: any step after its invocation means the same."""
    return one.completed if one.completed != NEVER else one.invoked + 1


def _invocation(one: Operation) -> dict[str, Any]:
    event: dict[str, Any] = {
        "step": one.invoked,
        "at": one.invoked_at,
        "process": one.process,
        "call": one.call.value,
        "log": one.log,
    }
    if one.value is not None:
        event["value"] = one.value
    if one.group:
        event["group"] = one.group
    if one.key is not None:
        event["key"] = one.key
    return event


def _completion(one: Operation, step: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "step": step,
        "of": one.invoked,
        "at": one.completed_at,
        "outcome": one.outcome,
        "log": one.log,
    }
    if one.result is not None:
        event["result"] = one.result
    return event


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:28]} … {text[-28:]}"
