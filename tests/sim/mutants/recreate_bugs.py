"""Planted bugs of deletions, found by seeds in which a topic is deleted and made again."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "recreate"

MUTANTS = (
    Mutant(
        "ack-id-of-another-topic",
        0,
        "Octavo, judged from outside",
        "an ack id of a deleted topic is valid in a new topic of the same name",
        """Offsets, epochs and leases begin anew in a topic that is made again, so an ack id of the
        old one fits a message of the new one that nobody has seen. The edit leaves the incarnation
        out of it.""",
        "X13 (an ack id is taken by the topic that gave it)",
        "consumers that ack late, a topic made again",
        (
            Edit(
                "octavo.broker.partition.partition:Partition.lease_epoch",
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
        "cleanup deletes a ledger that its owner is about to name",
        """An opening and a roll-over make a ledger before a record names it, and may take long.
        That nobody names it proves something once the record's epoch is above the one at which it
        was made. The edit forgets the epoch: the sweep takes what an owner is about to name.""",
        "P46 (what a chain names is there)",
        "an opening or a roll-over that is slower than two sweeps",
        (
            Edit(
                "octavo.broker.log.leftover:may_go",
                "return record.epoch > label.epoch",
                "return True",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "deletion-without-a-fence",
        0,
        "Octavo, judged from outside",
        "a topic is deleted without fencing its ledgers",
        """A claim ends with its owner's session, and an owner that is cut off hears of neither. It
        has its ledger open, and bookies take what it adds. The edit recovers no ledger: messages
        are acked into a topic whose deletion was answered.""",
        "X13 (nothing is acked into a topic that is gone)",
        "an owner whose session ends during a deletion, and does not know",
        (
            Edit(
                "octavo.broker.cluster.deletion:Deletions._delete",
                "await each_of(marked, lambda one: self._fence(one, served), _AT_ONCE)",
                "pass",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "deletion-waits-for-no-claim",
        0,
        "Octavo, judged from outside",
        "a topic deletion is answered while an owner still serves it",
        """A fenced owner adds nothing more, and knows nothing of it until it tries: it goes on
        giving out what it has in memory. The edit does not wait until no claim stands.""",
        "X13 (nothing of a topic that is gone is shown)",
        "an owner that cannot be told, with late watches",
        (
            Edit(
                "octavo.broker.cluster.deletion:Deletions._delete",
                "await self._until_let_go(name, incarnation, owners, job)",
                "pass",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "opener-looks-no-more",
        0,
        "Octavo, judged from outside",
        "an opener does not check again that its topic still exists",
        """Whoever claims after a deletion has looked for claims must find its mark, or that the
        topic is gone. The edit leaves out that look: the opener makes the partition's record again,
        and serves a topic that is gone.""",
        "X13 (nothing is acked into a topic that is gone)",
        "a broker with late watches that claims during a deletion",
        (
            Edit(
                "octavo.broker.log.record:PartitionRecordKeeper.read",
                "self._guard = await self.check_topic()",
                "pass",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "folder-of-owners-stays",
        0,
        "Octavo, planted by its authors",
        "deleting a topic leaves its metadata path behind",
        """Owners' records go with their sessions, and the path above them does not. The edits leave
        it, at the deletion and in the sweep: one path for each topic that ever was, for ever.""",
        "P63",
        "a topic that is deleted",
        (
            Edit(
                "octavo.broker.cluster.deletion:Deletions._delete",
                "await self._records.remove_owners_folder(*name)",
                "pass",
            ),
            Edit(
                "octavo.broker.cluster.deletion:Deletions.sweep",
                "await self._records.remove_owners_folder(*name)",
                "pass",
            ),
        ),
        PROFILE,
    ),
)
