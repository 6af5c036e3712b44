"""Random kills, stops and restarts of a real cluster under load: every promise still holds.
`CHAOS_ROUNDS`, `CHAOS_FAULTS` and `CHAOS_SEED` make it long, or repeat a round; a failure prints
the command."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.support.processes.chaos import random_faults, run_round
from tests.support.zookeeper_server import ZooKeeperServer

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
FAULTS = int(os.environ.get("CHAOS_FAULTS", "8"))
SEED = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().getrandbits(32))
ROUND_IDS = [f"round-{number}" for number in range(ROUNDS)]
"""Without the seed: the workers of pytest-xdist must find tests of the same names."""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS), ids=ROUND_IDS)
async def test_promises_hold_under_random_faults(tmp_path: Path, seed: int) -> None:
    await check_round(tmp_path, seed)


@pytest.mark.zookeeper
@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS), ids=ROUND_IDS)
async def test_they_hold_over_zookeeper_too(
    tmp_path: Path, seed: int, zookeeper: ZooKeeperServer
) -> None:
    await check_round(tmp_path, seed, zookeeper.new_url())


async def check_round(folder: Path, seed: int, metadata_url: str = "") -> None:
    test = "zookeeper" if metadata_url else "promises"
    replay = f"CHAOS_SEED={seed} CHAOS_FAULTS={FAULTS} pytest {__file__} -k {test} -s"
    print(f"replay: {replay}")
    rng = random.Random(seed)
    try:
        outcome = await run_round(folder / "data", rng, random_faults(rng, FAULTS), metadata_url)
    except BaseException as error:
        error.add_note(f"replay: {replay}")
        raise
    record, wrong = outcome.record, outcome.wrong
    print(
        f"seed {seed}: {record.sent} sent, {record.acked} acked, "
        f"{record.delivered.total()} deliveries of {len(record.delivered)} messages\n  "
        + "\n  ".join(outcome.faults)
    )
    assert not wrong, f"{len(wrong)} problems:\n" + "\n".join(wrong[:20]) + f"\nreplay: {replay}"
    assert record.acked == record.sent > 100, "the users did something"
    shutil.rmtree(folder / "data")
