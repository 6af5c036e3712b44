"""The class of attempts, and all attempts by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tests.attack.world import Said, World

Run = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Attempt:
    """An action of an unruly client. `run` raises when the answer was wrong."""

    name: str
    run: Run
    long: bool
    seconds: float = 0.0
    turn_s_max: float | None = None
    """The most processor time for a turn of a loop meanwhile; None: only reported."""
    turn_of: str = "broker"
    """The kind of process whose loops are judged: `broker` or `bookie`."""
    last: bool = False
    """Run after all others: what it takes is not given back for minutes."""
    collections: bool = True
    """Whether full garbage collections count as part of a turn (docs/decisions/83)."""


ATTEMPTS: dict[str, Attempt] = {}


TURN_S_MAX = 0.05
"""The most that a turn of a broker's or a bookie's loop may cost, whatever a client sends."""


def attempt(
    name: str,
    *,
    long: bool = False,
    turn_s_max: float | None = None,
    turn_of: str = "broker",
    last: bool = False,
    seconds: float = 0.0,
    collections: bool = True,
) -> Callable[[Run], Run]:
    def enter(run: Run) -> Run:
        assert name not in ATTEMPTS, name
        ATTEMPTS[name] = Attempt(
            name, run, long, seconds, turn_s_max, turn_of, last, collections=collections
        )
        return run

    return enter


def refused(said: Said, *statuses: int) -> None:
    """Check the answer to bad input: one of these codes, or a closed connection where 0 is among
    them."""
    assert said.status in statuses, said
    assert b"Traceback" not in said.body, said


def enter_each(
    prefix: str, requests: Iterable[tuple[str, bytes]], statuses: tuple[int, ...]
) -> None:
    for name, data in requests:

        async def run(world: World, data: bytes = data) -> None:
            for broker in range(len(world.brokers)):
                refused(await world.raw(data, broker=broker, wait_s=10), *statuses)

        attempt(f"{prefix}: {name}")(run)
