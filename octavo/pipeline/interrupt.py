"""A job that is told to stop: Ctrl-C (SIGINT), or SIGTERM of whoever runs it.

The job ends where it is, tells how far it has come, and exits as a shell expects (130, 143): never
as one that is done. Every job may be broken off anywhere and run again; here is only how that is
told. Spark sets a handler of its own for SIGINT, so ours is set again once Spark is there.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from octavo.pipeline.outcome import Outcome

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal has ended the job. `outcome`: how far it has come, if it can tell.

    A `KeyboardInterrupt`, because Py4J and asyncio let go of their connections and tasks on one.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number
        self.outcome: Outcome | None = None

    def ended(self, job: str) -> Outcome:
        """What the job ends with."""
        outcome = self.outcome or Outcome(job)
        outcome.interrupted = self.signal
        return outcome


class Signals:
    """Both signals raise `Interrupted` within; afterwards they do what they did before.

    Only the main thread can have them. A job in another one is interrupted by nobody.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._logging = logging.root.manager.disable

    def __enter__(self) -> Signals:
        self.set()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        logging.disable(self._logging)

    def set(self) -> None:
        """Also once more, when somebody else has set his."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.signal(number, _interrupt)
                self._before.setdefault(number, handler)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    logging.disable()  # Py4J logs pages about the call that is broken off
    raise Interrupted(number)


@contextlib.contextmanager
def told(outcome: Outcome, how_far: Callable[[], None]) -> Iterator[None]:
    """Steps of a job. `how_far` puts into the outcome what they have come to, however they end;
    an interruption takes it along."""
    try:
        yield
    except Interrupted as stop:
        stop.outcome = outcome
        raise
    finally:
        how_far()
