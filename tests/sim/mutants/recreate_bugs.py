"""A planted bug of deletions, found by seeds in which a topic is deleted and made again."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "recreate"

MUTANTS = (
    Mutant(
        "ack-id-of-another-topic",
        0,
        "Octavo, judged from outside",
        "ack ids that say nothing of the topic",
        """Offsets, epochs and leases begin anew in a topic that is made again, so an ack id of the
        old one fits a message of the new one that nobody has seen. The edit leaves the incarnation
        out of it.""",
        "S9 (an ack id is taken by the topic that gave it)",
        "consumers that ack late, a topic made again",
        (
            Edit(
                "broker.partition:Partition.lease_epoch",
                "return (zlib.crc32(self.incarnation.encode()) << 32) + self.epoch",
                "return self.epoch",
            ),
        ),
        PROFILE,
    ),
)
