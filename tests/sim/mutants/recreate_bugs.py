"""Planted bugs of deletions, found by seeds in which a topic is deleted and made again."""

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
    Mutant(
        "leftover-whatever-its-epoch",
        0,
        "Octavo, planted by its authors",
        "what no record names goes",
        """An opening and a roll-over make a ledger before a record names it, and may take long.
        That nobody names it proves something once the record's epoch is above the one at which it
        was made. The edit forgets the epoch: the sweep takes what an owner is about to name.""",
        "P46 (what a chain names is there)",
        "an opening or a roll-over that is slower than two sweeps",
        (Edit("broker.leftover:may_go", " and record.epoch > label.epoch", ""),),
        PROFILE,
    ),
)
