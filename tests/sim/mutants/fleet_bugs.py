"""Planted bugs of balance and maintenance, outside the canon."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "topic"

MUTANTS = (
    Mutant(
        "preference-without-bound",
        0,
        "membership.py",
        "partitions choose their brokers without a bound for each broker",
        """The former rule: the highest random weight decides, without a bound for a broker. The
        edit does not reduce a broker's free room.""",
        "S10 (no broker has two more of a topic than another)",
        "topics of several partitions",
        (Edit("octavo.broker.cluster.membership:preferred_brokers", "room[best] -= 1", "pass"),),
        PROFILE,
    ),
    Mutant(
        "nothing-is-handed-on",
        0,
        "balance.py",
        "a broker that joins gets only partitions that have no owner",
        """The former rule: a new broker gets only partitions without an owner. The edit takes the
        successor for this broker.""",
        "S10 (partitions lie where they should)",
        "brokers that join or return",
        (
            Edit(
                "octavo.broker.cluster.balance:Balance._misplaced",
                "if successor is not None and successor != own:",
                "if successor is not None and successor == own:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "handed-on-without-closing",
        0,
        "ownership.py",
        "a partition is released while it still serves",
        """The next owner fences the partition, so no message is lost, but open objects stay open.
        The edit releases without closing.""",
        "S11 (nothing discarded stays registered)",
        "hand-overs between brokers that go on living",
        (
            Edit(
                "octavo.broker.cluster.ownership:OwnershipManager._hand_off",
                "await partition.hand_off(on_drained)",
                "on_drained(None)",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "end-told-before-it-is-drained",
        0,
        "partition.py",
        "the successor learns the end while publishes are still under way",
        """Later publishes are stored behind the end that the successor knows. The edit does not
        wait for them, and the successor believes a closed ledger that is longer.""",
        "S9 (nothing acked is lost)",
        "hand-overs under load",
        (
            Edit(
                "octavo.broker.partition.partition:Partition._drained",
                "await publisher.confirmed_up_to(publisher.next_offset)",
                "pass",
            ),
            Edit(
                "octavo.broker.partition.partition:Partition._drained",
                "if publisher.failed or publisher.confirmed_offset != publisher.next_offset:",
                "if publisher.failed:",
            ),
            Edit(
                "octavo.broker.partition.handover_messages:HandoverState.is_told_by",
                "closed.last_entry == self.last_entry",
                "True",
            ),
            Edit(
                "octavo.broker.partition.handover_messages:HandoverState.is_told_by",
                "plain_length(closed) == self.contents.payload_bytes",
                "True",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "cursors-not-handed-on",
        0,
        "partition.py",
        "a hand-over passes on the producers but not the cursors",
        """Subscriptions start over. The edit leaves the state out, and the successor does not
        notice.""",
        "S9 (an ack that was answered holds)",
        "hand-overs of partitions with subscriptions",
        (
            Edit(
                "octavo.broker.partition.partition:Partition._drained",
                "state = tuple(self._snapshot())",
                "state = ()",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "state-writer-not-let-go",
        0,
        "state_log.py",
        "the writer of a state ledger is never released",
        """The writer listened to its bookies for as long as the process lived. The edit keeps it
        registered.""",
        "S11 (nothing discarded stays registered)",
        "losses of ownership by brokers that live on, with cursors",
        (Edit("octavo.broker.state.log:StateLog.close", "let_go(self._writer)", "pass"),),
        PROFILE,
    ),
    Mutant(
        "chores-end-with-one",
        0,
        "broker.py",
        "an error in one partition's maintenance ends the round for the others",
        """The former code: one loop over all partitions, awaited one after the other. The edit
        makes the round wait for each, in one task.""",
        "S12 (the others are maintained)",
        "an error that nobody expects in the upkeep of the first partition",
        (
            Edit(
                "octavo.broker.broker:Broker._look_after",
                'self.background_tasks.begin("upkeep", partition.name, partition.maintain)',
                'self.background_tasks.begin("upkeep", "", partition.maintain)',
            ),
        ),
        PROFILE,
    ),
)
