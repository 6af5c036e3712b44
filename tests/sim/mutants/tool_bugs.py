"""Planted bugs of bulk loads and of the offload."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "commit-not-keyed-by-the-batch",
        0,
        "broker/bulkload/rules.py (once)",
        "a batch that Spark writes again is committed twice",
        """After a commit with an unknown outcome, Spark writes the batch again, to new ledgers,
        and commits it under the same number. The edit takes the same number for a newer batch,
        so the rows are there twice.""",
        "X1 (a batch is committed once)",
        "a query that repeats a batch which is committed already",
        (
            Edit(
                "octavo.broker.bulkload.rules:standing",
                "if batch <= record.batch:",
                "if batch < record.batch:",
            ),
        ),
    ),
    Mutant(
        "complete-though-a-partition-failed",
        0,
        "broker/bulkload/rules.py (all or nothing)",
        "a bulk load is called complete although a partition failed to take its part",
        """The commit is answered, and the record says complete, once the owners were asked,
        whatever they answered. No broker then completes the failed partition: it lacks the
        batch that the others show. The edit ignores their errors.""",
        "X3 (complete means everywhere)",
        "a take-over or a lost call while parts are taken in",
        (
            Edit(
                "octavo.broker.bulkload.driver:BulkLoads._finish",
                "if isinstance(result, OctavoError):\n",
                "if isinstance(result, OctavoError):\n            continue\n"
                "        if isinstance(result, OctavoError):\n",
            ),
        ),
    ),
    Mutant(
        "abort-deletes-what-is-owed",
        0,
        "broker/bulkload/rules.py (giving up)",
        "an abort deletes ledgers that were committed but not yet inserted",
        """A driver that does not know whether its commit happened aborts; a collector of orphans
        does the same. Between commit and insertion no partition names the ledgers. The edit
        looks only at the partitions, so a committed ledger is deleted, and its partition can
        never insert it.""",
        "X4 (what is committed is not deleted)",
        "an abort, or a collection of orphans, between commit and insertion",
        (
            Edit(
                "octavo.broker.bulkload.driver:BulkLoads._is_needed",
                "if not record.complete and ",
                "if False and ",
            ),
        ),
    ),
    Mutant(
        "taken-in-without-a-mark",
        0,
        "broker/bulkload/rules.py (once)",
        "a partition does not remember which batch it has taken in",
        """If an owner's answer is lost, the commit is repeated, and the owner (perhaps a new one)
        must know that it has the part. The edit keeps no mark.""",
        "X2 (a partition takes in a part once)",
        "a commit that is repeated before it is complete",
        (
            Edit(
                "octavo.broker.bulkload.rules:marking",
                "    return {**kept, mark: batch}",
                "    return kept",
            ),
        ),
    ),
    Mutant(
        "bookies-dropped-before-the-record",
        0,
        "offloads.py",
        "a ledger's copies on bookies are deleted before the record says so",
        """The record still sends readers to the bookies, which no longer have the ledger; a run
        that dies in between leaves it so. The edit deletes the ledger first.""",
        "X8, P46 (what a record names is there)",
        "any drop",
        (
            Edit(
                "octavo.pipeline.offload:drop_ledger",
                "await change_partition(\n",
                "await cluster.ledgers.delete(drop.ledger_id)\n    await change_partition(\n",
            ),
        ),
    ),
    Mutant(
        "old-copy-finishes",
        0,
        "metadata/offloads.py (uuid)",
        "an offload run that was given up enters its object, which a newer run has removed",
        """A run that was thought dead returns and enters its object, which the new run has
        removed. The edit does not compare the copy's uuid with the record.""",
        "X6, X7 (an object that a record names is there)",
        "two runs at once, or one whose predecessor's last call is late",
        (
            Edit(
                "octavo.metadata.offloads:finished",
                "found.uuid != whole.uuid or ",
                "",
            ),
        ),
    ),
    Mutant(
        "owner-forgets-what-was-offloaded",
        0,
        "partition_record.py",
        "an owner that retries its write undoes the record of an offload",
        """Jobs and the owner change the record by compare-and-set. An owner that loses must look
        at the other change and keep it. The edit writes its own view again: the record forgets
        an object whose ledger the bookies may no longer have.""",
        "X6 (offloaded stays offloaded)",
        "a roll-over or a trim while a copy is entered",
        (
            Edit(
                "octavo.broker.log.record:PartitionRecordKeeper._put",
                "wanted = with_jobs_part_of(wanted, found)\n",
                "continue\n",
            ),
        ),
    ),
)
