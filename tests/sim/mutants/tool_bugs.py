"""Planted bugs of bulk loads and of the offload."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "commit-not-keyed-by-the-batch",
        0,
        "broker/bulkload/rules.py (once)",
        "a batch that Spark writes again is committed twice",
        """After an outcome that stayed unknown Spark writes the batch again, to new ledgers, and
        commits it under the same number. The edit takes the same number for a newer batch: the
        rows are there twice.""",
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
        """The commit is answered, and the record says complete, when the owners were asked,
        whatever they said. From then on nobody owes the part to the partition that failed: it
        shows nothing of the batch, the others all. The edit passes over their errors.""",
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
        """A driver that does not know whether its commit took place aborts; who collects orphans
        does the same from outside. Between commit and insertion no partition names the
        ledgers yet. The edit looks only at the partitions: a committed ledger is deleted, and its
        partition can never take it in.""",
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
        """The answer of an owner is lost, the commit is made again: the owner, which may be another
        one by now, must know that it has the part. The edit lets it keep nothing.""",
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
        """Whoever reads by the record then finds neither: it still sends readers to the bookies,
        and a run that dies in between leaves it so. The edit deletes the ledger first.""",
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
        """A run that was taken for dead comes back and enters its object, which the new run has
        removed. The edit does not look whose copy the record waits for.""",
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
        """Both change the record by compare-and-set. The owner that lost one looks what has
        changed, and must keep it. The edit writes its own view again: the record of an object is
        gone, whose ledger the bookies may have dropped.""",
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
