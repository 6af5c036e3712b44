"""kill −9 of a bookie at any moment: acked entries are there, and fences stay. Small caches and
journal files make kills hit flushes, roll-overs and checkpoints too."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from octavo.protocol.answers import Added
from octavo.protocol.codes import Code
from tests.support.raw_bookie import RawClient, add_of, adds_of, entry_of

ROUNDS = 6
PAYLOAD = b"p" * 300
OCTAVO = str(Path(sys.executable).parent / "octavo")
SMALL = {
    "flush_interval_ms": 30,
    "write_cache_bytes_max": 200_000,
    "journal_file_bytes_max": 1_000_000,
    "journal_preallocate_bytes": 262_144,
    "entry_log_bytes_max": 2_000_000,
    "disk_free_bytes_min": 2,
    "disk_free_bytes_resume": 3,
    "disk_free_bytes_reserve": 1,
}


def command(
    folder: Path, port: int = 0, bookie_id: str = "b1", settings: Mapping[str, int] = SMALL
) -> list[str]:
    told = [f"--set={name}={value}" for name, value in settings.items()]
    return [
        *(OCTAVO, "bookie", "--data", f"{folder}/data", "--metadata", f"file://{folder}/meta.db"),
        *("--port", str(port), "--bookie-id", bookie_id, *told),
    ]


@contextlib.contextmanager
def bookie_process(folder: Path, **settings: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    log = folder / "log"
    with open(log, "a") as out:
        start = out.tell()
        process = subprocess.Popen(
            command(folder, settings=SMALL | settings), stdout=out, stderr=out, text=True
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            lines = log.read_text()[start:].splitlines()
            ready = [line for line in lines if '"bookie_ready"' in line]
            if ready:
                break
            assert process.poll() is None, "\n".join(lines)
            assert time.monotonic() < deadline, "\n".join(lines)
            time.sleep(0.02)
        yield process, int(json.loads(ready[0])["address"].rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


async def add_until_killed(
    port: int, process: subprocess.Popen[str], first: int, kill_after: int
) -> int:
    """Pipeline adds to ledger 1 and kill the bookie once `kill_after` are acked; return the last
    acked entry."""
    client = await RawClient.connect_to(port)
    acked = first - 1
    sent = first
    answered: dict[int, int] = {}
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            while sent - acked < 3000 and process.poll() is None:
                client.send(adds_of(1, range(sent, sent + 500), PAYLOAD))
                sent += 500
            answer = await client.answer()
            assert isinstance(answer, Added)
            # An unacked entry that was stored before a kill is compared, and acked after new
            # entries.
            assert acked < answer.first <= answer.last < sent, "only what was sent, and each once"
            assert answer.first not in answered
            answered[answer.first] = answer.last
            while acked + 1 in answered:
                acked = answered.pop(acked + 1)
            if acked - first >= kill_after:
                process.kill()
    client.close()
    return acked


@pytest.mark.timeout(600)
async def test_what_was_acked_survives_kill_9(tmp_path: Path) -> None:
    rng = random.Random(20261121)
    acked = -1
    for _ in range(ROUNDS):
        with bookie_process(tmp_path) as (process, port):
            client = await RawClient.connect_to(port)
            expected = [entry_of(1, entry_id, PAYLOAD) for entry_id in range(acked + 1)]
            assert await client.read_all(1, acked) == expected
            client.close()
            acked = await add_until_killed(port, process, acked + 1, rng.randrange(1, 12_000))
    with bookie_process(tmp_path) as (_, port):
        client = await RawClient.connect_to(port)
        expected = [entry_of(1, entry_id, PAYLOAD) for entry_id in range(acked + 1)]
        assert await client.read_all(1, acked) == expected
        client.close()


@pytest.mark.timeout(600)
async def test_fence_and_key_survive_kill_9(tmp_path: Path) -> None:
    with bookie_process(tmp_path) as (process, port):
        client = await RawClient.connect_to(port)
        assert await client.add(add_of(1, 0)) is Code.OK
        assert await client.fence(1) == entry_of(1, 0)
        assert await client.fence(2) is Code.NO_ENTRY
        process.kill()
    with bookie_process(tmp_path) as (process, port):
        client = await RawClient.connect_to(port)
        assert await client.add(add_of(1, 1)) is Code.FENCED
        assert await client.add(add_of(2, 0)) is Code.FENCED
        assert await client.add(add_of(1, 1, key=b"x" * 20)) is Code.UNAUTHORIZED
        process.kill()


@pytest.mark.timeout(600)
async def test_sigterm_ends_in_good_order(tmp_path: Path) -> None:
    with bookie_process(tmp_path) as (process, port):
        client = await RawClient.connect_to(port)
        client.send(adds_of(1, range(1000), PAYLOAD))
        assert len(await client.acked(1000)) == 1000
        process.terminate()
        assert await client.is_closed()
        assert process.wait(20) == 0
    with bookie_process(tmp_path) as (_, port):
        client = await RawClient.connect_to(port)
        assert await client.read(1, -1) == entry_of(1, 999, PAYLOAD)
        client.close()
    assert "journal_replayed" not in (tmp_path / "log").read_text(), "all was flushed at the end"
