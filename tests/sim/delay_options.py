"""Messages with a due time, in a share of the seeds, and the check that they are not early.

Options come from a separate stream, so seeds without delays stay as they were.
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
    share: int = 0
    delay_ms_max: int = 1
    pending_max: int = 1_000_000

    def headers_of(self, value: str, now_ms: int) -> list[tuple[str, bytes | None]]:
        """Derive the headers from the value, so that other draws of a client do not change."""
        number = zlib.crc32(b"due " + value.encode())
        if number % 100 >= self.share:
            return []
        return [due_header(now_ms + number // 100 % self.delay_ms_max)]

    @contextmanager
    def installed(self, true_ms: Callable[[], int]) -> Iterator[None]:
        """Give owners the true time within the block.

        Other seeds set clocks off by an hour; here every message would be due at once, or not
        before the seed ends.
        """
        kept = Partition.wall_ms
        if self.share:
            setattr(Partition, "wall_ms", lambda _: true_ms())  # noqa: B010
        try:
            yield
        finally:
            setattr(Partition, "wall_ms", kept)  # noqa: B010


def draw(rng: random.Random) -> DelayOptions:
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
    """Check a shared subscription's messages at `wall_ms` on its broker's clock.

    X19: no message is early. Returns the number of messages with a due time.
    """
    waited = 0
    for one in given:
        due_ms = due_of(one.record.headers)
        waited += due_ms is not None
        if due_ms is not None and due_ms > wall_ms:
            fail(f"X19 {what} offset {one.offset} is due at {due_ms}, and was given at {wall_ms}")
    return waited
