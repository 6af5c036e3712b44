"""A read-only bookie of each kind, with the same calls: which may still write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from octavo.protocol.entry import master_key
from octavo.protocol.frames import Flag
from tests.apache.grounds import Ask
from tests.apache.matrix import Matrix
from tests.interop.phrases import add as v2_add
from tests.interop.phrases import payload_of
from tests.interop.talk import Talk, told
from tests.interop.v3_conversation import Said, answer, write_lac
from tests.interop.v3_conversation import add as v3_add

LEDGER = 7001
URGENT = 100
RECOVERY, HIGH = int(Flag.RECOVERY_ADD), int(Flag.HIGH_PRIORITY)


def read_only(matrix: Matrix, asked: Ask) -> None:
    with asked.grounds() as grounds:
        ports = (
            grounds.add_apache("forceReadOnlyBookie=true\n").port,
            grounds.add_octavo("--read-only").port,
        )
        asyncio.run(_ask_both(matrix, ports))


async def _ask_both(matrix: Matrix, ports: tuple[int, int]) -> None:
    operation = "adds to a read-only bookie: it refuses adds of replicators, and takes urgent adds"
    with matrix.row("frames by hand", "v2", operation) as checks:
        for what, flags in _FLAGS.items():
            theirs, ours = [await _v2(port, flags) for port in ports]
            checks.equal(what, ours, theirs)
    with matrix.row("frames by hand", "v3", operation) as checks:
        for said in _v3():
            v3_theirs, v3_ours = [await answer(port, said) for port in ports]
            checks.equal(said.what, v3_ours, v3_theirs)


_FLAGS = {
    "an add": 0,
    "a replicator's: RECOVERY_ADD": RECOVERY,
    "an urgent one": HIGH,
    "a recovery's: both": RECOVERY | HIGH,
}


async def _v2(port: int, flags: int) -> list[str]:
    async with await Talk.with_bookie(port) as talk:
        frame = v2_add(LEDGER, flags, payload_of(flags), flags=flags)
        return [told(one) for one in await talk.ask(frame)]


def _v3() -> Iterator[Said]:
    for entry, (what, flags) in enumerate(_FLAGS.items()):
        priority = URGENT if flags & HIGH else 0
        frame = v3_add(LEDGER + 1, entry, recovery=bool(flags & RECOVERY), priority=priority)
        yield Said(what, frame)
    yield Said("a LAC", write_lac(LEDGER + 1, 3, master_key(b"")))
