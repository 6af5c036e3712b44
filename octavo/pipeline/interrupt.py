"""Stop a job on SIGINT (Ctrl-C) or SIGTERM.

It reports how far it has come, and exits with 130 or 143. Spark sets its own SIGINT handler: set
this handler again after Spark has started.
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
    """A signal has ended the job. `outcome`: the results so far, if there are any.

    A `KeyboardInterrupt`, because Py4J and asyncio clean up on that exception.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number
        self.outcome: Outcome | None = None

    def ended(self, job: str) -> Outcome:
        outcome = self.outcome or Outcome(job)
        outcome.interrupted = self.signal
        return outcome


class Signals:
    """Within this context both signals raise `Interrupted`. Only the main thread can set
    handlers.
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
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.signal(number, _interrupt)
                self._before.setdefault(number, handler)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    logging.disable()  # Py4J would log pages about the interrupted call
    raise Interrupted(number)


@contextlib.contextmanager
def told(outcome: Outcome, how_far: Callable[[], None]) -> Iterator[None]:
    """Run steps of a job. `how_far` writes their results into the outcome, however they end."""
    try:
        yield
    except Interrupted as stop:
        stop.outcome = outcome
        raise
    finally:
        how_far()
