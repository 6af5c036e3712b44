"""The numbers in production code that decide when something happens, drawn tiny for a seed.

A simulated cluster never gets to 1,000 entries by itself, so the code beyond would never run. In
three of ten seeds all stay as they are. `tests/unit/sim/test_thresholds.py` checks that every such
number is here or, with the reason, in `thresholds_kept.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

CHOICES: Mapping[str, tuple[Any, ...]] = {
    # module:NAME → its possible values; the first is the extreme
    "octavo.bookie.back_pressure:CHUNK_BYTES_MIN": (1, 64),
    "octavo.bookie.gc.log_metadata:_KEPT_PAIRS_MAX": (0, 1, 3),
    "octavo.bookie.gc.log_metadata:_LEDGERS_AT_ONCE": (1, 2),
    "octavo.bookie.write.checkpoint:EXTENT_BYTES_MAX": (1, 200, 1000),
    "octavo.bookie.write.checkpoint:_SLICE_RUNS_MAX": (1, 2),
    "octavo.bookie.write.checkpoint:_STATE_SLICE": (1, 3),
    "octavo.bookie.gc.compaction:_BATCH_BYTES": (1, 500),
    "octavo.bookie.gc.compaction:_SLICE_BYTES": (1, 300, 2000),
    "octavo.bookie.gc.compaction:_SLICE_BYTES_MIN": (1, 300),
    "octavo.bookie.wire.connection:_GATHERED_BYTES_MAX": (1, 300),
    "octavo.bookie.entrylog.log:_RESERVE_BYTES": (1, 500, 5000),
    "octavo.bookie.entrylog.log:_SCAN_BYTES": (64, 200),
    "octavo.bookie.back_pressure:_HELD_BYTES_MIN": (0, 100),
    "octavo.bookie.write.flushing:_RETRY_FLUSH_S": (0.001, 0.05),
    "octavo.bookie.startup.index_rebuild:_BATCH": (1, 3),
    "octavo.bookie.journal.journal:_GROUP_APPENDS_MAX": (1, 2, 5),
    "octavo.bookie.journal.journal:_JOIN_BELOW_BYTES": (0, 100),
    "octavo.bookie.journal.journal:QUANTUM_BYTES": (1, 100, 600),
    "octavo.bookie.journal.reader:_SCAN_BYTES": (100, 1000),
    "octavo.bookie.ledgers.state:_REWRITE_ABOVE_BYTES": (0, 200, 2000),
    "octavo.bookie.entrylog.log:_BLANK_BYTES": (64, 300),
    "octavo.bookie.node:_RETRY_FIRST_S": (0.001, 0.5),
    "octavo.bookie.node:_RETRY_MAX_S": (0.01, 0.5),
    "octavo.bookie.back_pressure:MODEST_BYTES": (0, 200, 2000),
    "octavo.bookie.back_pressure:RUN_BYTES": (0, 5000),
    "octavo.bookie.back_pressure:PEAK_BYTES": (1, 300),
    "octavo.bookie.back_pressure:BURST_S": (0.001, 0.2),
    "octavo.bookie.back_pressure:_AT_ONCE_S": (0.0, 0.1),
    "octavo.bookie.gc.deletion_proof:_LOOKUPS_AT_ONCE": (1, 2),
    "octavo.bookie.gc.deletion_proof:_LOOKUPS_MAX": (30, 60),
    "octavo.bookie.read.read_ahead:_FIRST_BYTES": (1, 200),
    "octavo.bookie.read.read_ahead:_READERS_MAX": (1, 2),
    "octavo.bookie.read.read_ahead:_SILENT_S": (0.0, 0.01),
    "octavo.bookie.read.path:_LISTS_AT_ONCE": (1,),
    "octavo.bookie.wire.read_scheduler:_BYTES_PER_TURN": (1, 300),
    "octavo.bookie.wire.read_scheduler:_READS_PER_TURN": (1, 3),
    "octavo.bookie.read.cold_reads:_REST_RATIO": (1, 20),
    "octavo.bookie.read.cold_reads:_REST_S_MAX": (0.001, 1.0),
    "octavo.bookie.check.scrub:SLICE_BYTES": (100, 2000),
    "octavo.bookie.wire.in_flight:_AT_ONCE_MAX": (1, 2),
    "octavo.bookie.wire.in_flight:_RUNNING_MAX": (1, 2),
    "octavo.bookie.write.cache:_JOIN_RUNS": (2, 3, 5),
    "octavo.bookie.write.cache:_SMALL_BYTES": (0, 150, 300),
    "octavo.broker.cluster.balance:_TAKEN_WITHIN_S": (
        0.3,
        1.0,
    ),  # a watch may be this late at the successor
    "octavo.broker.operations.channel:URGENT_IN_A_ROW": (1, 2),
    "octavo.broker.operations.channel:_DEADLINES_KEPT": (0, 3),
    "octavo.broker.operations.channel:PIECE_BYTES": (1, 20, 300),
    "octavo.broker.operations.frames:_SMALL_BYTES": (0, 200),
    "octavo.broker.operations.kinds:WAITING_BYTES": (1, 200),
    "octavo.broker.operations.settling:ACKS_A_STEP": (1, 3, 20),
    "octavo.broker.operations.kinds:PAGE_BYTES_MAX": (1, 500),
    "octavo.broker.operations.links:WRITE_BUFFER_BYTES": (1, 300),
    "octavo.broker.log.cache:_COMPACT_AFTER": (1, 3),
    "octavo.broker.cluster.background_tasks:PAUSE_S_MAX": (0.05, 1.0),
    "octavo.broker.partition.compacted:_ENTRIES_MAX": (1, 2),
    "octavo.broker.partition.compacted:_LEDGERS_IN_PAGE_MAX": (1, 2),
    "octavo.broker.partition.compacted:_LOOK_EVERY_S": (0.0, 0.05),
    "octavo.broker.partition.compacted:_LOOK_S_MAX": (0.01, 0.2),
    "octavo.broker.partition.compacted:_READERS_MAX": (1, 2),
    "octavo.broker.partition.compacted:_TRIES_MAX": (1, 2),
    "octavo.broker.log.compaction_rules:_HINTS_MAX": (1, 2),
    "octavo.broker.state.cursor:_CHUNK_SHIFT": (1, 3),
    "octavo.broker.cluster.deletion:_AT_ONCE": (1, 2),
    "octavo.broker.cluster.deletion:_FENCED_AT_ONCE": (1, 2),
    "octavo.broker.cluster.deletion:_PAUSE_S": (0.001, 0.2),
    "octavo.broker.cluster.deletion:_PAUSE_S_MAX": (0.05, 0.3),
    "octavo.broker.log.entry_index:_LEDGERS_MAX": (1, 2),
    "octavo.broker.log.entry_index:_POINTS_MAX": (2, 5),
    "octavo.broker.log.reader:CHUNK_BYTES": (1, 400),
    "octavo.broker.log.reader:_CHUNK_ENTRIES_MAX": (1, 2, 5),
    "octavo.broker.log.reader:_CONFIRM_WAIT_S": (0.01, 0.2),
    "octavo.broker.log.reader:_HINTS_MAX": (1, 2),
    "octavo.broker.log.reader:_INTERPOLATIONS_MAX": (0, 1),
    "octavo.broker.log.reader:_READERS_MAX": (1, 2),
    "octavo.broker.log.reader:_STREAMS_MAX": (1, 2),
    "octavo.broker.cluster.registry:_RETRY_S": (0.01, 1.0),
    "octavo.broker.cluster.registry:_TAKEN_SESSIONS_MAX": (1,),
    "octavo.broker.partition.opening:_ATTEMPTS_MAX": (1, 2),
    "octavo.broker.broker:_KEPT_UP_AT_ONCE": (1, 2),
    "octavo.broker.broker:_QUIET_ROUNDS": (1, 2),
    "octavo.broker.cluster.ownership:_LOOKUPS_AT_ONCE": (1, 2),
    "octavo.broker.cluster.ownership:_OPENINGS_AT_ONCE": (1, 2),
    "octavo.ledger.read.open_batch:SMALL_BYTES": (0, 100),
    "octavo.broker.log.record:_RETRY_DELAY_S": (0.001, 0.5),
    "octavo.broker.partition.publisher:_LAST_ANSWERS_S": (0.001, 0.1),
    "octavo.broker.partition.publisher:_WAITING_FACTOR": (1, 2),
    "octavo.broker.cluster.watched_record:FRESH_WITHIN_S": (0.0, 0.02),
    "octavo.broker.partition.rollover:_RETRY_S": (0.001, 0.1),
    "octavo.broker.cluster.expiry:_RETIRED_S": (0.05, 1.0),
    "octavo.broker.policies:MARKS_MAX": (3, 5),
    "octavo.broker.subscriptions.last_used:_MARKS_A_SPAN": (1, 4),
    "octavo.broker.subscriptions.last_used:_MARK_EVERY_MS": (1, 1_000),
    "octavo.broker.partition.backlogs:_MARKS_A_SPAN": (1, 4),
    "octavo.broker.partition.backlogs:_PASSED_AT_ONCE": (1, 3),
    "octavo.broker.partition.backlogs:_JUDGED_A_QUOTA": (1, 4),
    "octavo.broker.state.format:SNAPSHOT_ENTRY_BYTES": (1, 200),
    "octavo.broker.state.log:_WAITING_MAX": (2, 10),
    "octavo.broker.subscriptions.subscription:_MESSAGES_MAX": (1, 3),
    "octavo.broker.subscriptions.subscription:_READ_BYTES": (1, 300),
    "octavo.broker.clock.timekeeper:_STALE_BEATS": (1, 2),
    "octavo.broker.cluster.topics:_CHANGES_TRIED_MAX": (1, 2),
    "octavo.broker.cluster.topics:_CHANGE_WAIT_S": (0.3, 2.0),
    "octavo.broker.cluster.topics:_STALE_SUBSCRIPTIONS_MAX": (0, 1),
    "octavo.broker.bulkload.rules:LEDGERS_MAX": (6, 20),
    "octavo.broker.bulkload.rules:MARKS_MAX": (1, 2, 4),
    "octavo.broker.bulkload.driver:_AT_ONCE": (1, 2),
    "octavo.broker.bulkload.driver:_CHANGES_TRIED_MAX": (1, 2),
    "octavo.broker.bulkload.driver:_SWEEP_AFTER_MS": (50, 300),
    "octavo.broker.partition.maintenance:_CHECKPOINT_ENTRIES": (1, 5, 20),
    "octavo.ledger.rereplication.copying:_SINGLE_READS_MAX": (1, 3),
    "octavo.ledger.rereplication.forgetting:_READ_AT_ONCE": (1, 2),
    "octavo.ledger.client:_TICK_S": (0.005, 0.5),
    "octavo.ledger.offload.format:GROUP_BYTES": (1, 300),
    "octavo.ledger.offload.format:GROUP_ENTRIES_MAX": (1, 3),
    "octavo.ledger.write.pending:CHUNK_BYTES_MAX": (1, 200, 1000),
    "octavo.ledger.write.pending:JOINED_PAYLOAD_BYTES_MAX": (0, 100),
    "octavo.ledger.write.pending:_TRIM_AT": (1, 3),
    "octavo.ledger.read.reader:_BUSY_PAUSE_S": (0.001, 0.1),
    "octavo.ledger.read.reader:_POLL_PAUSE_S": (0.001, 0.5),
    "octavo.ledger.read.reader:_SINGLE_READS_MAX": (1, 3),
    "octavo.ledger.records:_PAUSE_S_MAX": (0.05, 0.2),
    "octavo.ledger.records:_PAUSE_S_MIN": (0.001, 0.01),
    "octavo.ledger.recover.recovery_state:READ_AHEAD_BYTES_MAX": (1, 300),
    "octavo.ledger.recover.recovery:_BUSY_PAUSE_S": (0.001, 0.1),
    "octavo.ledger.recover.recovery:_RESTARTS_MAX": (1, 2),
    "octavo.ledger.write.ensemble_writer:_ANNOUNCE_PAUSE_S_MAX": (0.1, 1.0),
    "octavo.ledger.write.bookie_channel:_WINDOW_MAX": (2, 8, 64),
    "octavo.ledger.write.bookie_channel:_WINDOW_MIN": (1, 2),
    "octavo.ledger.write.writer:_HELD_FACTOR_MAX": (1, 2),
    "octavo.metadata.election:_CLAIMS_TRIED_MAX": (1, 2),
    "octavo.metadata.ledgers:_IDS_TRIED_MAX": (1, 2),
    "octavo.metadata.ledgers:_LISTINGS_AT_ONCE": (1, 2),
    "octavo.metadata.ledgers:_SENDS_MAX": (1, 2),
    "octavo.metadata.offloads:_PAUSE_S": (0.001, 0.5),
    "octavo.metadata.topics:_DELETES_TRIED_MAX": (1, 2),
    "octavo.pipeline.offload_rules:OFFLOADS_MAX": (1, 5),
    "octavo.spark.cluster:_RECORDS_AT_ONCE": (1, 2),
    "octavo.spark.commit:_AT_ONCE": (1, 2),
    "octavo.spark.commit:_GIVEN_UP_AT_ONCE": (1, 3),
    "octavo.spark.commit:_PAUSE_S": (0.01, 0.5),
    "octavo.spark.commit:_PAUSE_S_MAX": (0.5, 1.0),
    "octavo.ledger.client:_RECORDS_AT_ONCE": (1, 2),
    # Drawn last, so that the other draws of a seed stay as they were.
    "octavo.broker.cluster.orphan_ledgers:_AT_ONCE": (1, 2),
    "octavo.broker.cluster.forks:_AT_ONCE": (1, 2),
    "octavo.broker.log.ledger_references:_AT_ONCE": (1, 2),
    "octavo.broker.log.ledger_references:_LOOKED_AT_MAX": (2, 40),
    "octavo.broker.cluster.orphan_ledgers:_LOOKED_AT_MAX": (7, 40),
    "octavo.broker.cluster.orphan_ledgers:_SUSPECTS_MAX": (3, 10),
    "octavo.broker.cluster.balance:_PAUSE_S_MAX": (0.05, 2.0),
    "octavo.broker.cluster.ownership:_ASKED_EVERY_S": (0.01, 0.1),
    "octavo.broker.subscriptions.subscription:_GIVEN_BYTES_MAX": (1, 100),
    "octavo.ledger.read.open_batch:TURN_WINDOWS": (1, 2),
    "octavo.protocol.windows:WINDOW_RECORDS": (1, 3),
    "octavo.protocol.windows:WINDOW_BYTES": (1, 100),
    "octavo.protocol.windows:STEP_RECORDS": (1, 2),
    "octavo.broker.log.open_batches:RECORDS_A_TURN": (1, 3),
    "octavo.broker.subscriptions.subscription:_READING_S_MAX": (0.0, 0.01),
    "octavo.broker.subscriptions.subscription:_STORED_FOR_ONE_MAX": (1, 100),
    "octavo.broker.subscriptions.subscription:_RUNS_MAX": (1, 2),
    "octavo.client.handing:FIRST_MAX": (1, 2, 3),
    "octavo.client.handing:AHEAD_S": (0.05, 10.0),
    "octavo.broker.cluster.dead_letters:LARGE_AT_ONCE": (1, 3),
    "octavo.broker.cluster.dead_letters:SENDERS_MAX": (1, 2),
    "octavo.broker.subscriptions.dead_letter_delivery:_AT_ONCE": (1, 3),
    "octavo.broker.subscriptions.dispatch:_PUT_OFF_MS": (5, 50),
    "octavo.broker.state.format:COUNTS_OF_ONE_OP": (1, 2),
    "octavo.broker.state.stream:PRODUCERS_OF_ONE_OP": (1, 2),
    "octavo.broker.cluster.ownership:_ASKED_WITHIN_S": (0.02, 0.3),
    "octavo.broker.log.compaction_rules:_LEDGERS_MAX": (1, 3),
    "octavo.broker.broker:_RUN_REST_S": (0.001, 0.5),
    "octavo.broker.log.compaction_rules:_RUN_MESSAGES_MIN": (1, 6),
    "octavo.broker.log.compaction_rules:_RUN_TIMES_VIEW": (1, 2),
    "octavo.broker.log.compaction_rules:_SETTLED_AT_ONCE": (1, 3),
    "octavo.broker.partition.compactor:_TURN_STEPS": (1, 2),
    "octavo.broker.partition.compactor:_BATCH_BYTES": (1, 200),
    "octavo.broker.partition.compactor:_DELTA_MAX": (1, 5),
    "octavo.broker.partition.compactor:_READ_BYTES": (1, 300),
    "octavo.broker.partition.compactor:_READ_COUNT": (1, 5),
    "octavo.broker.partition.handover_messages:STATE_BYTES_MAX": (0, 60),
    "octavo.broker.state.leases:LEASES_BYTES_MAX": (0, 1_000),
    "octavo.broker.state.leases:_OF_ONE_OP": (1, 3),
    "octavo.broker.cluster.ownership:_GIVEN_LOOKS": (1, 4),
    "octavo.broker.cluster.ownership:_GIVEN_PAUSE_S": (0.001, 0.05),
    "octavo.broker.partition.opening:_CLOSED_LOOKS": (1, 4),
    "octavo.broker.partition.opening:_CLOSED_PAUSE_S": (0.001, 0.05),
    "octavo.broker.subscriptions.delays:_CUT_MESSAGES": (1, 3),
    "octavo.broker.subscriptions.delays:_RUN_MESSAGES": (1, 4),
    "octavo.broker.subscriptions.delays:_STEP_MESSAGES": (1, 5),
    "octavo.broker.subscriptions.key_shared:LOOK_MESSAGES": (1, 3),
    "octavo.broker.subscriptions.key_shared:_OF_ONE_KEY": (2, 20),
    "octavo.broker.subscriptions.key_lookahead:_READ_BYTES": (1, 300),
    "octavo.broker.subscriptions.subscription:_LOOKING_S_MAX": (0.0, 0.01),
    "octavo.broker.cluster.broker_status:_RETRY_S": (0.01, 1.0),
    "octavo.ledger.rereplication.keeper:_ROLL_OVER_FACTOR": (1, 3),
    "octavo.bookie.write.duplicate_adds:_ROUND_MAX": (1, 3),
    "octavo.bookie.node:_RISE_EVERY_S": (0.1, 2.0),
    "octavo.bookie.node:_RISE_PAUSE_S": (0.01, 0.3),
    "octavo.broker.cluster.ownership:_ABANDONED_AT_ONCE": (1, 2),
}
TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "octavo.broker.state.cursor:_CHUNK_SHIFT": {
        "_CHUNK": lambda shift: 1 << shift,
        "_LOW": lambda shift: (1 << shift) - 1,
    },
}
IMPORTED_TO: Mapping[str, tuple[str, ...]] = {
    "octavo.broker.subscriptions.key_shared:LOOK_MESSAGES": (
        "octavo.broker.subscriptions.key_lookahead",
    ),
    "octavo.ledger.read.open_batch:TURN_WINDOWS": ("octavo.ledger.read.time_search",),
    "octavo.protocol.windows:WINDOW_RECORDS": ("octavo.broker.log.open_batches",),
    "octavo.protocol.windows:STEP_RECORDS": ("octavo.broker.operations.batch_proofs",),
    "octavo.broker.partition.handover_messages:STATE_BYTES_MAX": (
        "octavo.broker.partition.partition",
    ),
    "octavo.bookie.back_pressure:MODEST_BYTES": ("octavo.bookie.wire.connection",),
    "octavo.pipeline.offload_rules:OFFLOADS_MAX": ("octavo.pipeline.offload",),
}
READ_AHEAD_OF = (
    ("octavo.ledger.recover.recovery_state", "READ_AHEAD_MIN"),
    ("octavo.ledger.recover.recovery_state", "READ_AHEAD_MAX"),
)
READ_AHEAD = ((1, 1), (1, 4), (2, 8), (2, 8), (8, 128))
"""Entries that a recovery reads at once, at first and at most: ledgers are short in every seed."""


@contextmanager
def shrunk(rng: Random, read_ahead: Random) -> Iterator[Mapping[str, Any]]:
    """Within the block, thresholds have the seed's values; yields the changed thresholds."""
    drawn = _draw(rng)
    kept: list[tuple[dict[str, Any], str, Any]] = []

    def put(module: str, name: str, value: Any) -> None:
        for space in _spaces(module, name):
            kept.append((space, name, space[name]))
            space[name] = value

    try:
        for (module, name), value in zip(READ_AHEAD_OF, read_ahead.choice(READ_AHEAD), strict=True):
            put(module, name, value)
        for target, value in drawn.items():
            module, _, name = target.partition(":")
            put(module, name, value)
            for other, follows in TOGETHER.get(target, {}).items():
                put(module, other, follows(value))
        yield drawn
    finally:
        for space, name, value in reversed(kept):
            space[name] = value


def _draw(rng: Random) -> dict[str, Any]:
    mood = rng.choices(("as ever", "some", "extreme"), (3, 5, 2))[0]
    found: dict[str, Any] = {}
    for target, choices in CHOICES.items():
        changed, choice = rng.random() < 0.4, rng.choice(choices)
        if mood == "extreme":
            found[target] = choices[0]
        elif mood == "some" and changed:
            found[target] = choice
    return found


def _spaces(module: str, name: str) -> list[dict[str, Any]]:
    modules = (module, *IMPORTED_TO.get(f"{module}:{name}", ()))
    return [vars(importlib.import_module(one)) for one in modules]
