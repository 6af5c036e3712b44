"""Judged by the original: our codec against Apache's bookie, our bookie beside it, our records.

    make interop            the whole, in about a minute
    make interop SAY=1      prints the transcript too

1. The same conversation is had with a real bookie of Apache BookKeeper and with ours; the two
   transcripts (codes, bytes, lengths) must be equal line by line, but for a few answers that differ
   on purpose, which are checked one by one.
2. Our registration, cookie and ledger metadata are read by Apache's shell, Apache's by us.
3. Apache's own client and ours write, leave, recover and read each other's ledgers over one bookie
   of each kind.
4. The same in v3 frames: a conversation with both bookies, whose answers must be equal; Apache's
   client in its default configuration, over both and then over three bookies of ours alone.

Needs Java, its compiler and Maven, which fetches BookKeeper from Maven Central once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
from pathlib import Path

import tests.interop.conversation  # noqa: F401 - its steps
from tests.interop import malformed, restart
from tests.interop.apache import VERSION, Missing, Peer, fetch, running
from tests.interop.checks import Checks
from tests.interop.clients import JavaClient, apaches_client
from tests.interop.our_client import our_client
from tests.interop.ours import OurBookie, quiet, store_at
from tests.interop.phrases import STEPS, STEPS_AFTER_RESTART, Step, transcript
from tests.interop.shared_records import apache_by_us, ours_by_apache
from tests.interop.v3_conversation import apaches_client_on_ours, v3_conversation


async def compare(
    checks: Checks, ports: tuple[int, int], steps: list[Step], first_ledger: int, aloud: bool
) -> None:
    """Have both conversations and compare them line by line."""
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
    """The conversation, what differs on purpose, and the conversation after kill −9."""
    ports = (peer.bookie_port, node.port)
    checks.title(f"one conversation, with Apache BookKeeper {VERSION} and with Octavo")
    await compare(checks, ports, STEPS, 1001, aloud)

    checks.title("where Octavo answers otherwise on purpose")
    for what, wanted in malformed.DELIBERATE.items():
        found = tuple([await malformed.deliberate(port, what) for port in ports])
        checks.equal(f"{what}: {wanted.why}", found, (wanted.apache, wanted.octavo))

    checks.title("the conversation goes on after kill −9 and a restart of both")
    for bookie_kill in (peer.kill_bookie, node.kill):
        bookie_kill()
    for bookie_start in (peer.start_bookie, node.start):
        await asyncio.to_thread(bookie_start)
    await compare(checks, ports, STEPS_AFTER_RESTART, 2001, aloud)
    await restart.forgotten_fence(checks, ports)


async def judge(checks: Checks, peer: Peer, aloud: bool) -> None:
    """All of it, against a peer that runs."""
    node = OurBookie(peer.folder, peer.zookeeper_port)
    async with store_at(peer.zookeeper_port) as store:
        try:
            await apache_by_us(checks, peer, store)
            await asyncio.to_thread(node.start)
            await transcripts(checks, peer, node, aloud)
            await ours_by_apache(checks, peer, store, node)
            java = JavaClient(peer)
            await asyncio.to_thread(java.compile)
            await apaches_client(checks, peer, store, node, java)
            await our_client(checks, peer, store, node, java)
            await v3_conversation(checks, (peer.bookie_port, node.port))
            await apaches_client_on_ours(checks, peer, store, node, java)
        finally:
            node.kill()


def main() -> int:
    """0 when everything held, 1 when something did not, 2 when something is missing."""
    checks = Checks()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="octavo-interop-")))
        try:
            lib = fetch()
            quiet(folder / "octavo.log")
            peer = stack.enter_context(running(lib, folder))
            asyncio.run(judge(checks, peer, aloud="--say" in sys.argv[1:]))
        except Missing as missing:
            print(f"interop cannot run: {missing}", file=sys.stderr)
            return 2
    if checks.failed:
        print(f"\n{len(checks.failed)} of {checks.passed + len(checks.failed)} checks FAILED:")
        for what in checks.failed:
            print(f"  {what}")
        return 1
    print(f"\nAll {checks.passed} checks passed: the two transcripts are equal.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
