"""Drive a call's work step by step, and count the processor time of the steps. Pure.

A call that waits costs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Measured(Generic[Value]):
    def __init__(
        self,
        work: Awaitable[Value],
        clock: Callable[[], float],
        spent: Callable[[float], object],
    ) -> None:
        self._work = work
        self._clock = clock
        self._spent = spent

    def __await__(self) -> Generator[Any, Any, Value]:
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
