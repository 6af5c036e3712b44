"""Drive a call's work step by step, and count the processor time of the steps. Pure.

A call that waits costs nothing. Not counted: the tasks that a call starts, and the work of TLS and
the parser before the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Measured(Generic[Value]):
    """Measures an awaitable: await this in place of `work`."""

    def __init__(
        self,
        work: Awaitable[Value],
        clock: Callable[[], float],
        spent: Callable[[float], object],
    ) -> None:
        """`clock`: processor seconds of this thread. `spent` gets the seconds of each step."""
        self._work = work
        self._clock = clock
        self._spent = spent

    def __await__(self) -> Generator[Any, Any, Value]:
        """Run `work` step by step, and report the processor time of each step."""
        steps = self._work.__await__()
        given: Any = None
        thrown: BaseException | None = None
        while True:
            began = self._clock()
            try:
                waits = steps.send(given) if thrown is None else steps.throw(thrown)
            except StopIteration as ended:
                value: Value = ended.value
                return value
            finally:
                self._spent(self._clock() - began)
            given, thrown = None, None
            try:
                given = yield waits
            except BaseException as error:  # pass on errors, and cancellations too
                thrown = error
