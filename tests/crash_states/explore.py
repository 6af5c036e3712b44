"""Goes through all sequences of operations, their crash points, and every disk that a crash
may leave. A crash point belongs to the sequence that ends with its operation, so each is
visited once. Equal states are checked once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from octavo.bookie.config import BookieConfig
from tests.crash_states.kills import second_lives
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.engine_lab.check import check
from tests.support.engine_lab.images import images, is_complete
from tests.support.engine_lab.life import TINY, CheckLoop, tinier
from tests.support.engine_lab.lives import (
    OPERATIONS,
    TWO_JOURNALS,
    WITH_TWO_JOURNALS,
    CrashPoint,
    points_of,
)
from tests.support.quiet import be_quiet

_PIECE, _KILLS_PIECE = 144, 4


class CrashStateFailed(AssertionError): ...


@dataclass
class Explored:
    sequences: int = 0
    points: int = 0
    """Crash points: moments before or after a call that changes the disk."""
    incomplete: int = 0
    """Crash points with too much unsynced data to combine all answers."""
    images: int = 0
    digests: set[bytes] = field(default_factory=set)
    """Distinct crash states: each was opened and checked."""
    known: set[bytes] = field(default_factory=set)
    """States that this process has checked before."""

    @property
    def states(self) -> int:
        return len(self.digests)

    def join(self, other: Explored) -> None:
        self.sequences += other.sequences
        self.points += other.points
        self.incomplete += other.incomplete
        self.images += other.images
        self.digests |= other.digests


def sequences(
    length_max: int, names: Iterable[str] = tuple(OPERATIONS)
) -> Iterator[tuple[str, ...]]:
    names = tuple(names)
    for length in range(length_max + 1):
        yield from product(names, repeat=length)


def explore(
    wanted: Iterable[Sequence[str]], config: BookieConfig = TINY, known: set[bytes] | None = None
) -> Explored:
    """Check every crash state of these sequences that is not `known`. Raises `CrashStateFailed`."""
    explored = Explored(known=set() if known is None else known)
    for sequence in wanted:
        explore_one(sequence, explored, config)
    return explored


def explore_all(
    length_max: int,
    jobs: int,
    *,
    kills: bool = False,
    two_journals: bool = False,
    on_sequences: Callable[[int], None] = lambda _: None,
) -> Explored:
    """Check all sequences of at most `length_max` operations. With `kills`, check second lives
    instead. `on_sequences` is called with the number of newly finished sequences."""
    wanted = list(sequences(length_max, WITH_TWO_JOURNALS if two_journals else OPERATIONS))
    look: Callable[..., Explored] = explore_kills if kills else explore
    if two_journals:
        look = partial(explore, config=TWO_JOURNALS)
    size = _KILLS_PIECE if kills else _PIECE
    whole = Explored()
    # Neighbours share most of their states, so a piece has sequences with the same first
    # operations.
    pieces = [wanted[at : at + size] for at in range(0, len(wanted), size)][::-1]
    with multiprocessing.get_context("spawn").Pool(jobs, be_quiet) as pool:
        for part in pool.imap_unordered(partial(_explore_piece, look), pieces):
            whole.join(part)
            on_sequences(part.sequences)
    return whole


_known: set[bytes] = set()


def _explore_piece(look: Callable[..., Explored], piece: list[tuple[str, ...]]) -> Explored:
    found = look(piece, known=_known)
    found.known = set()  # the caller does not need it
    return found


def explore_kills(wanted: Iterable[Sequence[str]], known: set[bytes] | None = None) -> Explored:
    """Check every crash state of second lives, after every end of the first. See kills.py."""
    explored = Explored(known=set() if known is None else known)
    for sequence in wanted:
        explored.sequences += 1
        loop = CheckLoop(1, trace=Trace())
        for story, points in second_lives(sequence):
            for point in points:
                _explore_point((*sequence, story), point, loop, explored)
        assert not loop.errors
        loop.close()
    return explored


def explore_one(sequence: Sequence[str], explored: Explored, config: BookieConfig = TINY) -> None:
    lives, loop = (kind(1, trace=Trace()) for kind in (SimLoop, CheckLoop))
    try:
        points = points_of(sequence, lives, config)
        explored.sequences += 1
        for point in points:
            _explore_point(sequence, point, loop, explored, config)
        assert not lives.errors + loop.errors
    finally:
        lives.close()
        loop.close()


def _explore_point(
    sequence: Sequence[str],
    point: CrashPoint,
    loop: SimLoop,
    explored: Explored,
    config: BookieConfig = TINY,
) -> None:
    explored.points += 1
    explored.incomplete += not is_complete(point.moment)
    for number, image in enumerate(images(point.moment)):
        explored.images += 1
        digest = image.digest(point.facts)
        if digest in explored.known:
            continue
        explored.known.add(digest)
        explored.digests.add(digest)
        try:
            with tinier():
                loop.run_until_complete(check(image, point.facts, sure=point.sure, config=config))
        except Exception as error:
            raise CrashStateFailed(_story(sequence, point, number, error)) from error


def _story(sequence: Sequence[str], point: CrashPoint, number: int, error: BaseException) -> str:
    return (
        f"after {', '.join(sequence) or 'nothing'}: the power fails {point.where}, image {number}: "
        f"{type(error).__name__}: {error}\n  promised: {point.facts}"
    )
