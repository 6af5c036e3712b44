"""The simulator in CI: many hundred seeds, earlier failures, and the same hash for the same seed.

`python -m tests.sim run SEED` replays a seed; docs/simulation.md tells how to read it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.__main__ import explain
from tests.sim.options import PROFILES
from tests.sim.run import run_seed

SEEDS = int(os.environ.get("SIM_SEEDS", "1200"))
PROFILE_SEEDS = int(os.environ.get("SIM_PROFILE_SEEDS", "48"))
"""Seeds of each profile. The same seed is another story in each profile."""
SHORT_SEEDS = 10
"""How many of them `make test` runs; of each profile, the first shard."""
_SHARD = 30
_OF_PROFILE = 6
_FIRST_OF_PROFILE = 2
_FIRST_OF = {"stream": 1, "load": 1, "large": 1}
"""Profiles with a smaller first shard, because a seed takes seconds."""
_HASHED = 30
_HERE = Path(__file__).parent


def kept_seeds() -> Iterator[Any]:
    """Yield the seeds of seeds.txt and their profiles. Seeds of whole clusters take seconds
    each."""
    for line in (_HERE / "seeds.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            seed, profile = line.split()[:2]
            slow = [pytest.mark.long] if profile in ("topic", "both", "stream", "large") else []
            yield pytest.param(int(seed), profile, marks=slow)


def shards() -> Iterator[Any]:
    """Yield ranges of seeds; all but the first are for `make test-all`."""
    yield pytest.param(range(SHORT_SEEDS), id="0")
    for first in range(SHORT_SEEDS, SEEDS, _SHARD):
        seeds = range(first, min(first + _SHARD, SEEDS))
        yield pytest.param(seeds, id=str(first), marks=pytest.mark.long)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", list(shards()))
def test_no_seed_fails(seeds: range) -> None:
    for seed in seeds:
        result = run_seed(seed)
        assert result.failure is None, explain(result)


def profile_shards() -> Iterator[Any]:
    """Yield some seeds of each profile; all but the first shard are for `make test-all`."""
    for profile in PROFILES:
        short = _FIRST_OF.get(profile, _FIRST_OF_PROFILE)
        yield pytest.param(profile, range(short), id=f"{profile}-0")
        for first in range(short, PROFILE_SEEDS, _OF_PROFILE):
            seeds = range(first, min(first + _OF_PROFILE, PROFILE_SEEDS))
            yield pytest.param(profile, seeds, id=f"{profile}-{first}", marks=pytest.mark.long)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("profile", "seeds"), list(profile_shards()))
def test_no_seed_of_a_profile_fails(profile: str, seeds: range) -> None:
    for seed in seeds:
        result = run_seed(seed, profile=profile)
        assert result.failure is None, explain(result)


@pytest.mark.parametrize(("seed", "profile"), list(kept_seeds()))
def test_what_failed_once_passes(seed: int, profile: str) -> None:
    result = run_seed(seed, profile=profile)
    assert result.failure is None, explain(result)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_same_seed_is_the_same_run_under_any_hash_seed() -> None:
    here = "".join(f"{seed} {run_seed(seed).trace_hash}\n" for seed in range(_HASHED))
    for hash_seed in ("1", "4711"):
        command = [sys.executable, "-m", "tests.sim", "many", str(_HASHED), "--hashes"]
        other = subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=_HERE.parent.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        assert other.stdout == here
