"""A short campaign of kills; `make kills N=500` runs a long one. `KILL_CYCLES` and `KILL_SEED`
make it longer, or repeat one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.process.campaign import run_campaign, shown

pytestmark = pytest.mark.long

CYCLES = int(os.environ.get("KILL_CYCLES", "24"))
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().getrandbits(32))


@pytest.mark.timeout(120 + 10 * CYCLES)
async def test_nothing_is_lost_in_a_campaign(tmp_path: Path) -> None:
    replay = f"KILL_SEED={SEED} KILL_CYCLES={CYCLES} pytest {__file__} -s"
    print(f"replay: {replay}")
    try:
        report = await run_campaign(tmp_path / "data", seed=SEED, cycles=CYCLES)
    except BaseException as error:
        error.add_note(f"replay: {replay}")
        raise
    print(shown(report))
    assert not report.wrong, f"replay: {replay}\n" + "\n".join(report.wrong[:20])
    assert not report.unknown_steps, "failpoints.py lacks persist steps that the product takes"
    assert report.cycles >= CYCLES
    assert report.acked == report.sent == report.stored == report.delivered > 1_000
    if CYCLES >= 500:
        assert not report.never_hit, f"in {CYCLES} kills nobody died at {report.never_hit}"
