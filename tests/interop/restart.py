"""A bookie's knowledge after kill −9: entries, fences, master keys. Apache's bookie (4.18.0,
DbLedgerStorage) forgets the fence of a ledger without entries: it journals the fence without the
key, and the replay takes that ledger for a deleted one. Recovery relies on such fences, so ours
keep them (`forgotten_fence`)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from octavo.protocol.frames import batch_read_request, read_request
from tests.interop.checks import Checks
from tests.interop.phrases import (
    FENCE,
    KEY,
    OTHER_KEY,
    RECOVERY,
    add,
    adds,
    payload_of,
    say,
    step,
    step_after_restart,
)
from tests.interop.talk import Talk, told

WRITTEN, FENCED, FENCED_UNHEARD, RECOVERED, UNHEARD = range(3000, 3005)


@step
async def before_restart(port: int, ledger: int) -> AsyncIterator[str]:
    """what will be asked again after kill −9: entries, a fence, a fence without a ledger"""
    async with await Talk.with_bookie(port) as talk:
        for at in (WRITTEN, FENCED, RECOVERED):
            async for line in say(talk, *adds(at, 0, 500)):
                yield line
        for at in (FENCED, FENCED_UNHEARD, RECOVERED):
            async for line in say(talk, read_request(at, -1, FENCE, KEY)):
                yield line
        async for line in say(talk, *adds(RECOVERED, 499, 3, RECOVERY)):
            yield line


@step_after_restart
async def entries_after(port: int, ledger: int) -> AsyncIterator[str]:
    """after kill −9: every acked entry is there"""
    async with await Talk.with_bookie(port) as talk:
        for at in (WRITTEN, FENCED, RECOVERED):
            for entry in (0, 250, 499, 501, -1):
                async for line in say(talk, read_request(at, entry)):
                    yield line
            async for line in say(talk, batch_read_request(at, 0, 1, 600, 200_000)):
                yield line
        async for line in say(talk, read_request(UNHEARD, 0)):
            yield line


@step_after_restart
async def keys_after(port: int, ledger: int) -> AsyncIterator[str]:
    """after kill −9: master keys are remembered"""
    async with await Talk.with_bookie(port) as talk:
        async for line in say(talk, add(WRITTEN, 500, b"x", key=OTHER_KEY)):
            yield line
        async for line in say(talk, read_request(WRITTEN, 0, FENCE, OTHER_KEY)):
            yield line
        async for line in say(talk, add(WRITTEN, 500, payload_of(500))):
            yield line


@step_after_restart
async def fences_after(port: int, ledger: int) -> AsyncIterator[str]:
    """after kill −9: fences hold, recovery passes them"""
    async with await Talk.with_bookie(port) as talk:
        for at in (FENCED, RECOVERED):
            async for line in say(talk, add(at, 502, payload_of(502))):
                yield line
            async for line in say(talk, add(at, 502, payload_of(502), flags=RECOVERY)):
                yield line
            async for line in say(talk, read_request(at, -1)):
                yield line


async def forgotten_fence(checks: Checks, ports: tuple[int, int]) -> None:
    said: list[str] = []
    for port in ports:
        async with await Talk.with_bookie(port) as talk:
            answers = await talk.ask(add(FENCED_UNHEARD, 0, payload_of(0)))
            said += [told(answer) for answer in answers]
    checks.equal(
        "Apache's forgets the fence of a ledger without entries, ours does not",
        said,
        [
            f"added 0…0 of ledger {FENCED_UNHEARD}",
            f"add of entry 0 of ledger {FENCED_UNHEARD}: 104 FENCED",
        ],
    )
