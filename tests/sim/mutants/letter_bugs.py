"""Planted bugs of dead letters and delivery counts."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "take-over-forgets-delivery-counts",
        0,
        "broker/partition/opening.py",
        "delivery counts are lost in the second take-over",
        """A take-over replays the state ledger and begins a new one with a snapshot, which had
        only the cursors. Tests with a single take-over did not see it, because the first
        successor has the counts in memory.""",
        "X15",
        "redeliveries, and two take-overs",
        (
            Edit(
                "octavo.broker.partition.opening:PartitionOpener._write_state",
                "end, state.ages.marks, told, seeks, state.access,",
                "end, state.ages.marks, (), (), state.access,",
            ),
        ),
        "topic",
    ),
    Mutant(
        "count-is-told-before-it-is-kept",
        0,
        "broker/subscriptions/subscription.py",
        "a delivery count is sent to a consumer before it is durable",
        """Counts were only in the owner's memory, as in Pulsar. A message that crashes its
        consumers starts at 1 after each take-over, and never becomes a dead letter.""",
        "X15",
        "redeliveries and a take-over",
        (
            Edit(
                "octavo.broker.subscriptions.subscription:Subscription._keep_counts",
                "await self._persist(deliveries_op(self.info.name, counts))",
                "pass",
            ),
        ),
        "topic",
    ),
    Mutant(
        "dead-letter-sent-again-is-another",
        0,
        "broker/cluster/dead_letters.py",
        "each try of a dead letter uses a new producer, so a repeat is stored twice",
        """When the answer to the first copy is lost, or its sender dies before the ack, the copy
        is sent again. The edit gives each try a new producer, so the topic stores it again.""",
        "X14",
        "dead letters under lost answers and take-overs",
        (
            Edit(
                "octavo.broker.cluster.dead_letters:DeadLetterRouter._send",
                "fitting_batch(record, producer_id)",
                "fitting_batch(record, producer_id ^ self._clock())",
            ),
        ),
        "topic",
    ),
)
