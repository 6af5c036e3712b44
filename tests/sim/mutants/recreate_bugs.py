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
        """Offsets, epochs and leases start again in a recreated topic, so an ack id of the old
        topic fits a message of the new one. The edit leaves the incarnation out of the id.""",
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
        """An opening or a roll-over creates a ledger before a record names it, which may take
        long. Only a higher epoch in the record proves that the ledger will never be named. The
        edit ignores the epoch.""",
        "P46 (what a chain names is there)",
        "an opening or a roll-over that is slower than two sweeps",
        (
            Edit(
                "octavo.broker.log.orphan_ledgers:may_go",
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
        """A claim ends with its owner's session, and an owner that is cut off learns of neither.
        Its ledger is open, and bookies accept its adds. The edit recovers no ledger, so
        messages are acked into a deleted topic.""",
        "X13 (nothing is acked into a topic that is gone)",
        "an owner whose session ends during a deletion, and does not know",
        (
            Edit(
                "octavo.broker.cluster.deletion:Deletions._delete",
                "await gather_each(marked, lambda one: self._fence(one, served), _FENCED_AT_ONCE)",
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
        """A fenced owner adds nothing, but notices it only when it tries; until then it serves
        messages from memory. The edit does not wait until no claim exists.""",
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
        """A broker that claims a partition after a deletion has looked for claims must find the
        deletion's mark, or that the topic is gone. The edit removes this check, so the opener
        recreates the record and serves a deleted topic.""",
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
        """Owners' records disappear with their sessions, but the path above them does not. The
        edits leave it, so every topic that ever existed costs a path.""",
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
