"""Random kills, stops and restarts of a real cluster under load: every promise still holds.

By default one short round with a new seed. `CHAOS_ROUNDS`, `CHAOS_FAULTS` and `CHAOS_SEED` make
it long, or repeat a round; a failure prints the command that repeats it.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.conftest import ZooKeeperServer
from tests.process.audit import problems
from tests.process.chaos import random_faults, run_round
from tests.process.users import Place, Record

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
FAULTS = int(os.environ.get("CHAOS_FAULTS", "8"))
SEED = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().getrandbits(32))
ROUND_IDS = [f"round-{number}" for number in range(ROUNDS)]
"""Without the seed: the workers of pytest-xdist must find tests of the same names."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS), ids=ROUND_IDS)
async def test_promises_hold_under_random_faults(tmp_path: Path, seed: int) -> None:
    await check_round(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(300)
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
        f"seed {seed}: {len(record.sent)} sent, {len(record.acked)} acked, "
        f"{sum(record.delivered.values())} deliveries of {len(record.delivered)} messages\n  "
        + "\n  ".join(outcome.faults)
    )
    assert not wrong, f"{len(wrong)} problems:\n" + "\n".join(wrong[:20]) + f"\nreplay: {replay}"
    assert len(record.acked) == len(record.sent) > 100, "the users did something"
    shutil.rmtree(folder / "data")


GOOD: dict[Place, tuple[str, str]] = {(0, n): (f"p0-{n}", "p0-k0") for n in range(4)}


def good_record() -> Record:
    """Of users who were told the truth about `GOOD`."""
    record = Record()
    for place, (text, key) in GOOD.items():
        record.sent[text] = key
        record.acked[text] = place
        record.texts[place] = text
    return record


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({(0, 3): None}, "lost: p0-3 was acked at (0, 3)"),
        ({(0, 4): ("p0-3", "p0-k0")}, "stored twice: p0-3"),
        ({(0, 1): ("p0-2", "p0-k0"), (0, 2): ("p0-1", "p0-k0")}, "comes after number 2"),
        ({(0, 1): None, (0, 4): ("p0-1", "p0-k0")}, "partition 0 has holes in its offsets: [1]"),
        ({(0, 4): ("p9-0", "p9-k0")}, "which nobody sent"),
        ({(0, 3): None, (1, 0): ("p0-3", "p0-k0")}, "p0-3 was acked at (0, 3) and is at [(1, 0)]"),
    ],
)
def test_the_audit_finds_what_is_wrong(
    broken: dict[Place, tuple[str, str] | None], said: str
) -> None:
    assert problems(good_record(), GOOD, 2) == []
    found = {place: one for place, one in {**GOOD, **broken}.items() if one is not None}
    assert any(said in problem for problem in problems(good_record(), found, 2))


def test_the_audit_finds_what_was_not_delivered_or_delivered_wrong() -> None:
    record = good_record()
    del record.texts[0, 2]
    record.texts[0, 1] = "p0-0"
    found = problems(record, GOOD, 1)
    assert "(0, 2) was never delivered" in found
    assert any(problem.startswith("(0, 1) was delivered as 'p0-0'") for problem in found)
