"""A bookie whose disk is slower than its network: its memory stays bounded, no add is refused.
It is a separate process, so its peak memory (VmHWM) is its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.processes.standalone import environment
from tests.support.raw_bookie import RawClient, adds_of, entry_of

pytestmark = pytest.mark.long

MIB = 1024 * 1024
CONNECTIONS = 4
ROUNDS = 8
ADDS = 5_000
PAYLOAD = b"m" * 1_000
SENT_MIB = CONNECTIONS * ROUNDS * ADDS * len(PAYLOAD) // MIB
GROWTH_MIB_MAX = 64
"""Twice the sum of the bounds below: the interpreter and the allocator take their share."""
BOUNDS = {
    "connection_add_bytes_max": MIB,
    "journal_queue_bytes_max": 4 * MIB,
    "journal_group_bytes_max": MIB,
    "write_cache_bytes_max": 8 * MIB,
    "read_cache_bytes_max": 4 * MIB,
}
BOOKIE = textwrap.dedent(
    """
    import asyncio, sys, time, json
    from pathlib import Path
    import uvloop
    from tests.support.raw_bookie import TroubledDisk, running_bookie

    async def main():
        disk = TroubledDisk()
        disk.hook = lambda call, path: time.sleep(0.02) if call == "datasync" else None
        async with running_bookie(Path(sys.argv[1]), disk=disk, **json.loads(sys.argv[2])) as node:
            print(node.port, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    uvloop.run(main())
    """
)


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


async def flood(client: RawClient, ledger_id: int) -> None:
    async def send() -> None:
        for number in range(ROUNDS):
            client.send(adds_of(ledger_id, range(number * ADDS, (number + 1) * ADDS), PAYLOAD))
            await client.writer.drain()

    sending = asyncio.create_task(send())
    expected = [(ledger_id, entry_id) for entry_id in range(ROUNDS * ADDS)]
    assert await client.acked(ROUNDS * ADDS) == expected
    await sending


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads VmHWM from /proc")
async def test_a_slow_disk_does_not_fill_the_memory(tmp_path: Path) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220 (it starts once, nothing else runs yet)
        [sys.executable, "-c", BOOKIE, str(tmp_path), json.dumps(BOUNDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while not (line := process.stdout.readline().strip()).isdigit():
            assert line, "the bookie did not start"
        clients = [await RawClient.connect_to(int(line)) for _ in range(CONNECTIONS)]
        assert await clients[0].add(adds_of(99, [0])) == 0
        before = peak_mib(process.pid)
        await asyncio.gather(*(flood(client, n) for n, client in enumerate(clients, 1)))
        grown = peak_mib(process.pid) - before
        assert grown < GROWTH_MIB_MAX < SENT_MIB / 2, f"{grown:.0f} MiB of {SENT_MIB} MiB sent"
        last = ROUNDS * ADDS - 1
        assert await clients[0].read(1, last) == entry_of(1, last, PAYLOAD)
        for client in clients:
            client.close()
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()
