"""The tools of a seed: Spark's sink and the offload, in a share of seeds.

Options come from a separate stream, so other seeds stay as they were.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from octavo.pipeline.offload_rules import OffloadPolicy

_SINK_SHARE = 0.45
_OFFLOAD_SHARE = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    queries: int = 0
    """Streaming queries that write to the topic."""
    tasks: int = 1
    abort_p: float = 0.0
    """How often a batch is given up before its commit."""
    twin_p: float = 0.0
    """How often a task's twin leaves ledgers behind that the driver never hears of."""
    repeat_p: float = 0.0
    """How often an answered commit is made again."""
    collectors: int = 0
    """Collectors of orphans, also while their batches are in progress."""
    orphan_grace_ms: int = 0
    commit_timeout_ms: int = 1_000
    sweep_after_ms: int = 10_000

    offloaders: int = 0
    """Two runs at once are a mistake that must do no harm."""
    policy: OffloadPolicy = field(default_factory=OffloadPolicy)
    group_entries_max: int = 20_000
    objects_fail_p: float = 0.0
    ledger_readers: int = 0
    """Readers of partitions as Spark's source reads: bookies and objects, without a broker."""
    read_from: str = "auto"

    deletes_topic: bool = False
    safety_s: float = 0.0
    """How long faults are on, at least."""

    @property
    def are_there(self) -> bool:
        return bool(self.queries or self.offloaders)


def draw(rng: random.Random) -> ToolOptions:
    sink, offload = rng.random() < _SINK_SHARE, rng.random() < _OFFLOAD_SHARE
    return ToolOptions(
        queries=rng.choices((1, 2), (3, 1))[0] * sink,
        tasks=rng.choice((1, 2, 3)),
        abort_p=rng.choice((0.0, 0.1, 0.3)),
        twin_p=rng.choice((0.0, 0.2)),
        repeat_p=rng.choice((0.1, 0.4)),
        collectors=rng.choice((0, 1)) * sink,
        orphan_grace_ms=rng.choice((-3_600_000, 0, 300)),
        commit_timeout_ms=rng.choice((200, 1_000, 3_000)),
        sweep_after_ms=rng.choice((1, 100, 10_000)),
        offloaders=rng.choices((1, 2), (2, 1))[0] * offload,
        policy=OffloadPolicy(
            age_ms=rng.choice((-3_600_000, -3_600_000, 0, 100)),
            drop_lag_ms=rng.choice((None, -3_600_000, -3_600_000, 0, 150)),
            grace_ms=rng.choice((100, 400, 3_600_000)),
        ),
        group_entries_max=rng.choice((1, 2, 20_000)),
        objects_fail_p=rng.choice((0.0, 0.0, 0.05)),
        ledger_readers=rng.choice((0, 1)) * (offload or sink),
        read_from=rng.choice(("auto", "auto", "offload", "bookies")),
        deletes_topic=rng.random() < 0.4,
        safety_s=rng.choice((1.0, 1.5, 2.5)),
    )
