"""What an attempt is, and all of them by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tests.attack.world import Said, World

Run = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Attempt:
    """One thing that an unruly client does. `run` raises when the answer was not the right one."""

    name: str
    run: Run
    long: bool
    """Not part of the short form."""
    seconds: float = 0.0
    """How long it goes on by what it is told."""


ATTEMPTS: dict[str, Attempt] = {}


def attempt(name: str, *, long: bool = False) -> Callable[[Run], Run]:
    """Enter the function under `name`."""

    def enter(run: Run) -> Run:
        assert name not in ATTEMPTS, name
        ATTEMPTS[name] = Attempt(name, run, long)
        return run

    return enter


def refused(said: Said, *statuses: int) -> None:
    """The answer to bad input: a 4xx of these, or a closed connection where 0 is among them."""
    assert said.status in statuses, said
    assert b"Traceback" not in said.body, said


def enter_each(
    prefix: str, requests: Iterable[tuple[str, bytes]], statuses: tuple[int, ...]
) -> None:
    """One attempt for each of these raw requests, at every broker."""
    for name, data in requests:

        async def run(world: World, data: bytes = data) -> None:
            for broker in range(len(world.brokers)):
                refused(await world.raw(data, broker=broker, wait_s=10), *statuses)

        attempt(f"{prefix}: {name}")(run)
