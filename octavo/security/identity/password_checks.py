"""Check passwords on a few threads: each check takes milliseconds of a core.

Waiting checks are bounded, and an address may have an eighth of them: a flood of logins keeps no
other address out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from octavo.security.identity.failed_logins import LoginsPaused, source_of

RETRY_S = 1.0


class PasswordChecks:
    def __init__(self, at_once: int, waiting_max: int) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="password")
        self._at_once, self._waiting_max = at_once, waiting_max
        self._turn = asyncio.Semaphore(at_once)
        self._under_way: Counter[str] = Counter()

    def describe(self) -> dict[str, int]:
        return {"under_way": self._under_way.total()}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, peer: str, check: Callable[[], bool], may: Callable[[], None]) -> bool:
        """Run `check` on a thread. `may` is called when the turn comes, and may raise.

        Raises `LoginsPaused` when too many checks wait.
        """
        address = source_of(peer)
        full = self._under_way.total() >= self._at_once + self._waiting_max
        if full or self._under_way[address] >= max(1, self._waiting_max // 8):
            raise LoginsPaused("too many logins at once: try again in a second", RETRY_S)
        self._under_way[address] += 1
        try:
            async with self._turn:
                may()
                # A thread cannot be cancelled: keep the turn until the check ends, or more checks
                # than threads would run.
                return await _to_its_end(
                    asyncio.get_running_loop().run_in_executor(self._threads, check)
                )
        finally:
            self._under_way[address] -= 1
            if not self._under_way[address]:
                del self._under_way[address]


async def _to_its_end(work: asyncio.Future[bool]) -> bool:
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
