"""The sections of docs/planted_bugs.md, in order, with an introduction for each.

Every file of planted bugs belongs to a section; a file in no section is not planted.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.mutants import (
    bookie_bugs,
    client_bugs,
    copy_bugs,
    count_bugs,
    deferred_bugs,
    fleet_bugs,
    garbage_bugs,
    large_bugs,
    leave_bugs,
    left_bugs,
    letter_bugs,
    older_bugs,
    overlooked_bugs,
    own_compaction_bugs,
    policy_bugs,
    published_bugs,
    recovery_bugs,
    recreate_bugs,
    room_bugs,
    spread_bugs,
    stream_bugs,
    survivor_bugs,
    tested_bookie_bugs,
    tested_broker_bugs,
    tested_caller_bugs,
    tested_ledger_bugs,
    tested_operation_bugs,
    tested_partition_bugs,
    tested_repeat_bugs,
    tested_v3_bugs,
    time_bugs,
    tool_bugs,
    topic_bugs,
    type_bugs,
    view_bugs,
    writer_bugs,
)
from tests.sim.mutants.planting import Mutant
from tests.sim.mutants.tested import TestedBug


@dataclass(frozen=True, slots=True)
class Section:
    """Planted bugs of a kind."""

    title: str
    intro: str
    mutants: tuple[Mutant, ...] = ()
    """Bugs that seeds find."""
    tested: tuple[TestedBug, ...] = ()
    """Bugs that the test they name finds."""


SECTIONS = (
    Section(
        "The field",
        """Bugs that systems in the field had. The canon of 25 has numbers.""",
        (
            *recovery_bugs.MUTANTS,
            *writer_bugs.MUTANTS,
            *bookie_bugs.MUTANTS,
            *garbage_bugs.MUTANTS,
            *topic_bugs.MUTANTS,
        ),
    ),
    Section(
        "Older metadata",
        """Planted in the check that bookies make when an older copy of the metadata is put back;
        searched with seeds of profile `older`.""",
        older_bugs.MUTANTS,
    ),
    Section(
        "Deferred syncs",
        "A third of the seeds have ledgers whose adds are acked before their sync.",
        deferred_bugs.MUTANTS,
        deferred_bugs.BUGS,
    ),
    Section(
        "Spark",
        """Planted in bulk loads and the offload, which one in six seeds uses.""",
        tool_bugs.MUTANTS,
    ),
    Section(
        "Batches that Spark publishes",
        "Planted in `commit=producer`, which a third of the seeds with topics use.",
        published_bugs.MUTANTS,
    ),
    Section(
        "Dead letters and delivery counts",
        """Two of five seeds with topics have subscriptions with dead letters, and consumers that
        cannot process half of their messages.""",
        letter_bugs.MUTANTS,
    ),
    Section(
        "The client, and bytes",
        """Planted in the production client, which three of ten seeds with topics use.""",
        client_bugs.MUTANTS,
    ),
    Section(
        "Times",
        """Planted in the age of messages, the clock of deletions, and lookups by time; searched
        with seeds of profile `topic`.""",
        time_bugs.MUTANTS,
    ),
    Section(
        "Policies",
        """Planted in expiry, backlog quotas and deferred durability.""",
        policy_bugs.MUTANTS,
        policy_bugs.BUGS,
    ),
    Section(
        "Automatic compaction, and delayed messages",
        """Two of five seeds with topics have compactions, and three of ten have messages with a
        due time. Searched with seeds of profile `topic`.""",
        own_compaction_bugs.MUTANTS,
        own_compaction_bugs.BUGS,
    ),
    Section(
        "Copies that move",
        "Planted in re-replication; searched with seeds of profile `copies`.",
        copy_bugs.MUTANTS,
    ),
    Section(
        "Recreated topics, and orphan ledgers",
        "Searched with seeds of profile `recreate`.",
        recreate_bugs.MUTANTS,
    ),
    Section(
        "Durable streams",
        """Planted in the rules for new appends and for the end of a stream; searched with seeds
        of profile `stream`.""",
        stream_bugs.MUTANTS,
    ),
    Section(
        "Large messages",
        "Planted in uploads and their insertion; searched with seeds of profile `large`.",
        large_bugs.MUTANTS,
    ),
    Section(
        "Balance by load",
        """Planted in the balance of partitions; searched with seeds of profile `load`.""",
        spread_bugs.MUTANTS,
    ),
    Section(
        "Ownership and hand-over",
        """Planted in ownership, hand-overs and background tasks; searched with seeds of profile
        `topic`.""",
        fleet_bugs.MUTANTS,
    ),
    Section(
        "Types of subscriptions",
        """Planted in dispatch; searched with seeds of profile `topic`, a quarter of which have
        such subscriptions.""",
        type_bugs.MUTANTS,
        type_bugs.BUGS,
    ),
    Section(
        "Survivors",
        """An outside review planted 29 bugs; these kinds survived every test of that time.""",
        survivor_bugs.MUTANTS,
        survivor_bugs.BUGS,
    ),
    Section(
        "Mistakes that a reviewer may overlook",
        """A line that looks redundant and is removed, a simplified condition, an off-by-one, a
        similar name, an `any` for an `all`; at least one for each pure module.""",
        (*view_bugs.MUTANTS, *overlooked_bugs.MUTANTS),
        (
            *tested_ledger_bugs.BUGS,
            *tested_bookie_bugs.BUGS,
            *tested_repeat_bugs.BUGS,
            *tested_v3_bugs.BUGS,
            *tested_broker_bugs.BUGS,
            *tested_partition_bugs.BUGS,
        ),
    ),
    Section(
        "Counts and wake-ups",
        """Counts that an error, a time-out or a cancellation does not give back, and waits that
        nothing ends. Searched with seeds of profile `crowd` or `topic`.""",
        count_bugs.MUTANTS,
        count_bugs.BUGS,
    ),
    Section(
        "Calls that end in the middle",
        """Counts that are not given back when a client of durable streams goes away, or a call
        between brokers is given up: seeds of profile `leave` find them.""",
        tested=leave_bugs.BUGS,
    ),
    Section(
        "Rooms without findings so far",
        """Counts, wake-ups, cache keys, cancellations, order of waiters and equality at a bound,
        planted in rooms where no review had found a defect.""",
        tested=room_bugs.BUGS,
    ),
    Section(
        "Leases across hand-overs, and delays",
        """Planted in leases that survive a planned hand-over, and in the sorted runs of delayed
        messages.""",
        tested=left_bugs.BUGS,
    ),
    Section(
        "Rights of callers",
        "Planted in the protection of ledgers, bulk loads, streams and calls of other callers.",
        tested=tested_caller_bugs.BUGS,
    ),
    Section(
        "Operations between brokers",
        "Planted in the connection between brokers.",
        tested=tested_operation_bugs.BUGS,
    ),
)
