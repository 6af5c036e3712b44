"""One conversation with Apache's bookie and with ours: the two transcripts must be equal."""

from __future__ import annotations

import asyncio
import itertools

import tests.interop.conversation  # noqa: F401 - its steps
from tests.interop import malformed, restart
from tests.interop.apache import VERSION, Peer
from tests.interop.checks import Checks
from tests.interop.ours import OurBookie
from tests.interop.phrases import STEPS, STEPS_AFTER_RESTART, Step, transcript


async def compare(
    checks: Checks, ports: tuple[int, int], steps: list[Step], first_ledger: int, aloud: bool
) -> None:
    theirs, again = [await transcript(port, steps, first_ledger) for port in ports]
    differing = 0
    for number, (one, other) in enumerate(itertools.zip_longest(theirs, again), 1):
        if one != other:
            differing += 1
            print(f"  line {number}\n    Apache: {one}\n    Octavo: {other}")
        elif aloud or (one or "").startswith("—"):
            print(f"  = {one}")
    checks.holds(
        f"the two transcripts are equal: {len(theirs)} lines",
        not differing,
        f"{differing} lines differ, see above",
    )


async def transcripts(checks: Checks, peer: Peer, node: OurBookie, aloud: bool) -> None:
    ports = (peer.bookie.port, node.port)
    checks.title(f"one conversation, with Apache BookKeeper {VERSION} and with Octavo")
    await compare(checks, ports, STEPS, 1001, aloud)

    checks.title("where Octavo answers otherwise on purpose")
    for what, wanted in malformed.DELIBERATE.items():
        found = tuple([await malformed.deliberate(port, what) for port in ports])
        checks.equal(f"{what}: {wanted.why}", found, (wanted.apache, wanted.octavo))

    checks.title("the conversation goes on after kill −9 and a restart of both")
    for bookie_kill in (peer.bookie.kill, node.kill):
        bookie_kill()
    for bookie_start in (peer.bookie.start, node.start):
        await asyncio.to_thread(bookie_start)
    await compare(checks, ports, STEPS_AFTER_RESTART, 2001, aloud)
    await restart.forgotten_fence(checks, ports)
