"""Messages that say when they are due, in a share of the seeds, and whether that is held.

Drawn from a stream of its own: a seed without them is what it was before there were any.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from octavo.broker.partition.partition import Partition
from octavo.broker.types import Delivery
from octavo.protocol.due import due_header, due_of

_SHARE = 0.4
HEEDING = ("shared", "key_shared")
"""Subscriptions of these types wait until a message is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayOptions:
    """One seed's."""

    share: int = 0
    """Of a hundred messages."""
    delay_ms_max: int = 1
    pending_max: int = 1_000_000

    def headers_of(self, value: str, now_ms: int) -> list[tuple[str, bytes | None]]:
        """By the value alone, so that no draw of a client's is another one."""
        number = zlib.crc32(b"due " + value.encode())
        if number % 100 >= self.share:
            return []
        return [due_header(now_ms + number // 100 % self.delay_ms_max)]

    @contextmanager
    def installed(self, true_ms: Callable[[], int]) -> Iterator[None]:
        """Owners have the right time meanwhile: clocks that are off by an hour, which others are
        for, would have everything due at once, or nothing before the seed is over."""
        kept = Partition.wall_ms
        if self.share:
            setattr(Partition, "wall_ms", lambda _: true_ms())  # noqa: B010
        try:
            yield
        finally:
            setattr(Partition, "wall_ms", kept)  # noqa: B010


def draw(rng: random.Random) -> DelayOptions:
    """The options of one seed."""
    if rng.random() >= _SHARE:
        return DelayOptions()
    return DelayOptions(
        share=rng.choice((10, 50, 100)),
        delay_ms_max=rng.choice((300, 2_000)),
        pending_max=rng.choice((1, 4, 1_000)),
    )


def check_due(
    given: Sequence[Delivery], wall_ms: int, what: str, fail: Callable[[str], None]
) -> int:
    """A shared subscription has given these when its broker's clock said `wall_ms`.

    X19: none before it is due. How many of them say when they are.
    """
    waited = 0
    for one in given:
        due_ms = due_of(one.record.headers)
        waited += due_ms is not None
        if due_ms is not None and due_ms > wall_ms:
            fail(f"X19 {what} offset {one.offset} is due at {due_ms}, and was given at {wall_ms}")
    return waited
