"""Which planted bugs belong together: the order of docs/planted_bugs.md, and what it says of each.

Every file of planted bugs is in one section; what is in none is not planted.
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
    """Planted bugs of one kind."""

    title: str
    intro: str
    mutants: tuple[Mutant, ...] = ()
    """Found by seeds."""
    tested: tuple[TestedBug, ...] = ()
    """Found by the test that each names."""


SECTIONS = (
    Section(
        "The field",
        """Numbers are those of the canon of 25; bugs without a number come from the ledger
        protocol's own list and from BookKeeper's newest.""",
        (
            *recovery_bugs.MUTANTS,
            *writer_bugs.MUTANTS,
            *bookie_bugs.MUTANTS,
            *garbage_bugs.MUTANTS,
            *topic_bugs.MUTANTS,
        ),
    ),
    Section(
        "Metadata that is older",
        """A copy that is put back, which seeds of profile `older` do; whether the bookies notice,
        and what follows when it is accepted.""",
        older_bugs.MUTANTS,
    ),
    Section(
        "Deferred syncs",
        "A third of the seeds have ledgers whose adds are acked before their sync.",
        deferred_bugs.MUTANTS,
        deferred_bugs.BUGS,
    ),
    Section(
        "Spark's side",
        """Planted together with the load that drives bulk loads and the offload, which one
        in six seeds has.""",
        tool_bugs.MUTANTS,
    ),
    Section(
        "Batches that are published",
        "`commit=producer`, which a third of the seeds with topics have.",
        published_bugs.MUTANTS,
    ),
    Section(
        "Dead letters and delivery counts",
        """Two of five seeds with topics have subscriptions that give messages up, and consumers
        that cannot process half of what they get.""",
        letter_bugs.MUTANTS,
    ),
    Section(
        "The client, and bytes",
        """Planted together with the load that drives the production client, which three of ten
        seeds with topics have.""",
        client_bugs.MUTANTS,
    ),
    Section(
        "Times",
        """Planted in what says how old messages are, what time it is for deletions, and where a
        time begins; searched with seeds of profile `topic`.""",
        time_bugs.MUTANTS,
    ),
    Section(
        "Policies",
        """What counts as acked though nobody acked it, who waits for a backlog, and what an ack of
        deferred durability says.""",
        policy_bugs.MUTANTS,
        policy_bugs.BUGS,
    ),
    Section(
        "Compaction by itself, and what is not due",
        """Two of five seeds with topics have compactions, most of these by brokers, too; three of
        ten have messages that say when they are due. Searched with seeds of profile `topic`.""",
        own_compaction_bugs.MUTANTS,
        own_compaction_bugs.BUGS,
    ),
    Section(
        "Copies that move",
        "Planted in what brings lost copies back, and searched with seeds of profile `copies`.",
        copy_bugs.MUTANTS,
    ),
    Section(
        "Topics made again, and ledgers that nobody names",
        "Searched with seeds of profile `recreate`.",
        recreate_bugs.MUTANTS,
    ),
    Section(
        "Durable streams",
        """Planted in what says which append is new, and when a stream has ended; searched with
        seeds of profile `stream`.""",
        stream_bugs.MUTANTS,
    ),
    Section(
        "Large messages",
        "Planted in what makes them whole, and once; searched with seeds of profile `large`.",
        large_bugs.MUTANTS,
    ),
    Section(
        "Balance by load",
        """Planted in what says who gives what to whom, and when; searched with seeds of profile
        `load`.""",
        spread_bugs.MUTANTS,
    ),
    Section(
        "Brokers that share the work",
        """Planted in what says who serves a partition, in hand-overs and in what a broker does
        from time to time; searched with seeds of profile `topic`.""",
        fleet_bugs.MUTANTS,
    ),
    Section(
        "Types of subscriptions",
        """Planted in what says which message goes to whom; searched with seeds of profile
        `topic`, a quarter of which have such subscriptions.""",
        type_bugs.MUTANTS,
        type_bugs.BUGS,
    ),
    Section(
        "Survivors",
        """Of 29 bugs that were planted when the system was judged from outside, these kinds had
        survived every test.""",
        survivor_bugs.MUTANTS,
        survivor_bugs.BUGS,
    ),
    Section(
        "What a reviewer may overlook",
        """Bugs of no field: a line that looks redundant and is left out, a condition made simpler,
        an off-by-one, a similar name, an `any` for an `all`; at least one for each module that
        decides. Most were planted before it was known what finds them; what nothing found is in
        tests/RECORD.md, with what closes the hole.""",
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
        """What an error, a time-out or a cancellation does not give back, and waits that nothing
        ends: a dropped line mostly. Searched with seeds of profile `crowd`, or `topic`.""",
        count_bugs.MUTANTS,
        count_bugs.BUGS,
    ),
    Section(
        "Rooms that no judge has named",
        """Counts, wake-ups, keys of caches, cancellations, order among waiters, equality at a
        bound: planned before it was known what finds them.""",
        tested=room_bugs.BUGS,
    ),
    Section(
        "What an owner leaves, and what waits",
        """Planted in the leases that survive a planned hand-over, and in the sorted runs of
        messages that are not due.""",
        tested=left_bugs.BUGS,
    ),
    Section(
        "What is another's",
        "Planted in what a caller may do to ledgers and bulk loads that are not its own.",
        tested=tested_caller_bugs.BUGS,
    ),
    Section(
        "Operations between brokers",
        "Planted in the connection that brokers ask one another by.",
        tested=tested_operation_bugs.BUGS,
    ),
)
