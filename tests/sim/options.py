"""The options of a seed: cluster, limits, deadlines, workload, faults. All are drawn.

Each seed draws a subset of faults and its own tiny limits, so events that come once a day in
production happen all the time. Some seeds have no faults.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

QUORUMS: Mapping[int, tuple[tuple[int, int, int], ...]] = {
    3: ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 2, 1), (2, 2, 1), (2, 2, 2), (3, 3, 3), (1, 1, 1)),
    4: ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 2), (2, 2, 2), (4, 4, 3), (3, 2, 1)),
    5: ((3, 3, 2), (3, 3, 2), (4, 3, 2), (5, 3, 2), (5, 3, 3), (4, 2, 2), (5, 5, 3), (5, 2, 1)),
}
"""(E, Qw, Qa) by the number of bookies: with and without spares, with E > Qw, with Qa = Qw."""

PROFILES = ("ledger", "topic", "both", "beyond", "copies", "recreate", "stream", "load", "large",
            "crowd")  # fmt: skip
"""Ledgers alone; topics alone; both; more lost than promised; bookies that keep their copies; a
topic that is deleted and made again; durable streams; brokers that balance by load; large messages;
clients that ask too much and leave."""
BY_NAME = ("still", "older", "leave")
"""Profiles that run by name only: few faults and late ticks (still.py); metadata that is turned
back to an older copy (older.py); clients of streams, and brokers' calls, that end in the middle
(leave_load.py)."""

FAULTS: Mapping[str, float] = {
    # kind of fault → mean seconds between two of them, for the most eager seeds
    "power_loss": 0.8,  # a machine: unsynced data is lost
    "kill": 0.8,  # a process: the page cache survives
    # the power fails in the middle of a blocking call, at its n-th disk operation
    "crash_in_call": 0.8,
    "power_loss_of_all": 2.5,
    "restart": 1.2,  # orderly, with other limits
    "pause": 0.8,  # a process; sometimes past its session
    "crash_client": 1.5,
    "cut": 0.8,
    "cut_one_way": 0.8,
    "clog": 0.6,
    "reset": 0.5,
    "silence": 1.0,  # connections that look alive and carry nothing
    "sync_fails": 2.0,
    "read_fails": 1.5,
    "write_fails": 2.5,
    "index_lost": 2.5,  # by an operator or by damage: it is rebuilt from the entry logs
    "disk_full": 2.0,
    "slow_disk": 1.0,
    "damage": 2.0,  # a copy is lost for good: a bit or a sector rots, a disk is wiped
    "swap": 3.0,  # two machines get one another's disks
    "metadata_away": 1.5,
    "metadata_cut": 1.5,
    "metadata_reset": 1.0,
    "session_expires": 2.0,
    "busy": 0.8,  # a bookie answers TooManyRequests for a while
    "clock_jumps": 1.5,  # a wall clock is set, forwards or backwards
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    seed: int
    profile: str
    bookies: int
    quorums: tuple[tuple[int, int, int], ...]
    """Its ledgers' quorums are drawn from these."""
    safety_s: float
    faults: Mapping[str, float]
    """Kind → mean virtual seconds between two faults of that kind."""
    damage_max: int
    """How many bookies may lose a copy for good."""
    beyond: bool = False
    """More may be lost than promised: nothing has to survive, but no bookie may lie."""

    writers: int = 1
    recoverers: int = 1
    tailers: int = 1
    ledgers: int = 3
    entries_max: int = 24
    summons: float = 0.0
    """How likely a burst of adds calls the recoverers."""
    ambush: float = 0.0
    """How likely faults follow a delicate moment."""
    payload_bytes_max: int = 120
    pipeline: int = 6
    deletes: bool = False
    deferred: float = 0.0
    """How likely a ledger's adds are acked before their sync."""
    v3_writers: int = 0
    """Writers of such ledgers that use v3 frames."""
    crowd: int = 0
    """Clients that ask too much and leave: profile `crowd`."""

    disk_bytes: int = 2_000_000
    journal_directories: tuple[str, ...] = ("/j",)
    ledger_directories: tuple[str, ...] = ("/l",)
    keeps_copies: bool = False
    """Whether bookies fetch the copies that they lack: profile `copies`."""
    accepts_loss: bool = False
    """Whether an operator uses --accept-loss for a bookie that refuses to start."""
    bookie: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, float] = field(default_factory=dict)
    network: Mapping[str, float] = field(default_factory=dict)

    def other_limits(self, rng: random.Random) -> SimOptions:
        return replace(self, bookie=_bookie_limits(rng))


def draw(seed: int, profile: str | None, rng: random.Random) -> SimOptions:
    bookies = rng.choices((3, 4, 5), (5, 4, 2))[0]
    quorums = tuple(rng.choice(QUORUMS[bookies]) for _ in range(rng.randint(1, 3)))
    drawn = rng.random()  # drawn in every case, so that a profile by name has the same draws
    beyond = profile == "beyond" or (profile is None and drawn < 0.06)
    survive = min(qa for _, _, qa in quorums) - 1
    options = SimOptions(
        seed=seed,
        profile=profile or ("beyond" if beyond else "ledger"),
        bookies=bookies,
        quorums=quorums,
        safety_s=rng.choice((0.3, 0.7, 0.7, 1.5)),
        faults=_faults(rng, beyond=beyond),
        damage_max=bookies if beyond else survive,
        beyond=beyond,
        writers=rng.choices((1, 2, 3), (6, 3, 1))[0],
        ledgers=rng.choice((1, 2, 3)),
        recoverers=rng.choices((0, 1, 2), (1, 4, 3))[0],
        tailers=rng.choices((0, 1, 2), (2, 4, 1))[0],
        entries_max=rng.choice((4, 8, 16, 32)),
        summons=rng.choice((0.0, 0.1, 0.4)),
        ambush=rng.choice((0.0, 0.3, 1.0)),
        payload_bytes_max=rng.choice((30, 120, 120, 600)),
        pipeline=rng.choice((1, 3, 8, 20)),
        deletes=rng.random() < 0.5,
        ledger_directories=rng.choice((("/l",), ("/l", "/m"))),
        bookie=_bookie_limits(rng),
        client=_client_limits(rng),
        metadata=_metadata(rng),
        network=_network(rng),
        journal_directories=rng.choice((("/j",), ("/j",), ("/j", "/j2"), ("/j", "/j2", "/j3"))),
        accepts_loss=rng.random() < 0.6,
        # From a separate stream, so that a seed's other draws stay as they are.
        deferred=random.Random(f"deferred {seed}").choice((0.0, 0.0, 0.5)),
        v3_writers=random.Random(f"v3 {seed}").choice((0, 0, 0, 1)),
    )
    if profile == "recreate":
        return _with_deletions(options, rng)
    if profile in ("stream", "load", "large"):
        faults = _thinned(options.faults, rng)
        return replace(options, safety_s=rng.choice((1.5, 3.0)), faults=faults)
    return _with_keepers(options, rng) if profile == "copies" else options


def _with_deletions(options: SimOptions, rng: random.Random) -> SimOptions:
    late = {**options.metadata, "watch_delay_ms": rng.choice((2.0, 100.0, 1_000.0))}
    faults = _thinned(options.faults, rng)
    # Longer than any broker is away: bookies' memory of deletions (a week in production) tells an
    # isolated owner that its ledger is gone.
    bookie = {**options.bookie, "gc_deleted_keep_ms": 1_000_000}
    return replace(
        options, metadata=late, safety_s=rng.choice((1.5, 3.0)), faults=faults, bookie=bookie
    )


def _thinned(faults: Mapping[str, float], rng: random.Random) -> dict[str, float]:
    """Keep some of the faults: where everything goes wrong at once, hardly anything is done."""
    share = rng.choice((0.2, 0.6, 1.0))
    return {kind: mean_s for kind, mean_s in faults.items() if rng.random() < share}


def _with_keepers(options: SimOptions, rng: random.Random) -> SimOptions:
    bookies = rng.choice((3, 4, 4, 5))
    quorums = tuple(quorum for quorum in QUORUMS[bookies] if quorum[2] >= 2)
    faults = {**options.faults, "damage": rng.choice((0.6, 1.5)), "leaves": rng.choice((0.8, 2.0))}
    return replace(
        options,
        bookies=bookies,
        quorums=tuple(rng.choice(quorums) for _ in range(2)),
        damage_max=1,
        safety_s=rng.choice((1.5, 3.0)),
        faults=faults,
        ledgers=rng.choice((2, 4)),
        keeps_copies=True,
    )


def _faults(rng: random.Random, *, beyond: bool) -> dict[str, float]:
    if rng.random() < 0.05:
        return {}
    share = rng.choice((0.15, 0.3, 0.5))
    pace = rng.choice((0.5, 0.5, 1.0, 2.0))
    drawn = {kind: mean_s * pace for kind, mean_s in FAULTS.items() if rng.random() < share}
    if beyond:
        drawn["damage"] = 0.5
    return drawn


def _bookie_limits(rng: random.Random) -> dict[str, Any]:
    cache = rng.choice((700, 2_000, 8_000, 100_000))
    limits: dict[str, Any] = {
        "journal_file_bytes_max": rng.choice((600, 1_200, 4_096, 50_000)),
        "journal_preallocate_bytes": rng.choice((512, 2_048, 8_192)),
        "journal_group_bytes_max": rng.choice((300, 2_000, 50_000)),
        "journal_queue_bytes_max": rng.choice((500, 4_000, 100_000)),
        "write_cache_bytes_max": cache,
        "read_cache_bytes_max": rng.choice((1_000, 20_000)),
        "read_ahead_bytes_max": rng.choice((256, 2_000, 20_000)),
        "entry_log_bytes_max": rng.choice((1_000, 4_000, 50_000)),
        "flush_interval_ms": rng.choice((200, 800, 3_000)),
        "connection_add_bytes_max": rng.choice((400, 4_000, 100_000)),
        "connection_reads_max": rng.choice((2, 256)),
        "connection_answer_bytes_max": rng.choice((500, 100_000)),
        "answer_stall_ms_max": 2_000,
        "batch_read_bytes_max": rng.choice((300, 4_000, 100_000)),
        "long_polls_max": rng.choice((1, 4096)),
        "frame_bytes_max": 64 * 1024,
        "scratch_bytes": rng.choice((4_096, 16_384)),
        "disk_free_bytes_min": 40_000,
        "disk_free_bytes_resume": 60_000,
        "disk_free_bytes_reserve": 20_000,
        "disk_check_interval_ms": rng.choice((200, 600, 2_000)),
        "scrub_interval_ms": 700,
        "consistency_check_on_start": True,
        "start_timeout_ms": 5_000,
        "stop_timeout_ms": 500,
        "pressed_stall_ms_max": 1_000,
    }
    queue = limits["journal_queue_bytes_max"]
    return {
        **limits,
        "add_bytes_max": 2 * queue + 4_000,
        "answer_bytes_max": 8 * queue,
        "receive_bytes_max": 4 * queue,
        **_garbage_limits(random.Random(str(limits))),
    }


def _garbage_limits(rng: random.Random) -> dict[str, Any]:
    """Derived from earlier draws, so that a seed's other draws stay as they are."""
    return {
        "gc_interval_ms": rng.choice((100, 300, 600, 1_000)),
        "gc_quarantine_ms": rng.choice((1, 100, 300)),
        "gc_minor_interval_ms": rng.choice((100, 500)),
        "gc_minor_ratio": rng.choice((0.2, 0.5)),
        "gc_major_interval_ms": rng.choice((300, 1_500)),
        "gc_major_ratio": rng.choice((0.6, 0.8, 0.99)),
        "gc_bytes_per_s": rng.choice((100_000, 10_000_000)),
        "gc_disk_free_bytes_min": 5_000,
        "gc_deleted_keep_ms": rng.choice((1, 1_000, 1_000_000)),
        "open_entry_logs_max": rng.choice((1, 2, 900)),
    }


def _client_limits(rng: random.Random) -> dict[str, Any]:
    return {
        "add_timeout_s": rng.choice((0.3, 0.6, 1.5)),
        "read_timeout_s": rng.choice((0.3, 0.8)),
        "connect_timeout_s": rng.choice((0.3, 0.8)),
        "metadata_timeout_s": rng.choice((0.5, 3.0)),
        "stall_timeout_s": rng.choice((0.3, 1.5)),
        "speculative_read_ms": rng.choice((5.0, 100.0)),
        "pending_bytes_max": rng.choice((400, 4_000, 100_000)),
        "pending_entries_max": rng.choice((3, 1_000)),
        "explicit_lac_interval_ms": rng.choice((50.0, 200.0)),
        "busy_backoff_ms_max": 100.0,
        "retry_failed_bookie_ms": rng.choice((60.0, 300.0)),
        "reconnect_ms_min": 20.0,
        "reconnect_ms_max": 300.0,
        "connection_buffer_bytes_max": rng.choice((500, 100_000)),
        "scratch_bytes": 16 * 1024,
        "read_batch_bytes_max": rng.choice((300, 100_000)),
        "read_batch_entries_max": rng.choice((3, 1_000)),
        "long_poll_ms": rng.choice((100.0, 500.0)),
        "suspect_ms": rng.choice((100.0, 1_000.0)),
    }


def _metadata(rng: random.Random) -> dict[str, float]:
    if rng.random() < 0.6:
        return {}
    return {
        "request_lost": rng.choice((0.0, 0.01, 0.05)),
        "reply_lost": rng.choice((0.0, 0.02, 0.1)),
        "lag_ms": rng.choice((0.0, 50.0)),
        "watch_delay_ms": rng.choice((2.0, 50.0)),
    }


def _network(rng: random.Random) -> dict[str, float]:
    latency = {"latency_s": rng.choice((0.0003, 0.0003, 0.002, 0.01))}
    if rng.random() < 0.5:
        return latency
    return {
        **latency,
        "fragment_p": rng.choice((0.0, 0.1, 0.5)),
        "reset_p": rng.choice((0.0, 0.0, 0.002)),
        "tail_p": rng.choice((0.01, 0.1)),
    }
