"""Planted bugs of the batches that Spark's sink publishes."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "committed-before-it-is-published",
        0,
        "commit.py (publish)",
        "a batch is committed when the first of its partitions has its share",
        """The commit says that all rows are there, and after it nobody publishes the batch again.
        The edit waits for one partition: what the others lack is lost.""",
        "X10 (committed means published)",
        "a batch with rows for several partitions",
        (
            Edit(
                "octavo.spark.commit:publish",
                "for target, (_, data) in content.items())",
                "for target, (_, data) in [*content.items()][:1])",
            ),
        ),
    ),
    Mutant(
        "begun-with-any-rows",
        0,
        "broker/bulkload/rules.py (published by the writer)",
        "a batch that was begun is continued with different rows",
        """Producer and sequence of a batch are made of its number: they stand for the same rows, or
        half of one attempt and half of another are there. The record notes what a batch was begun
        with. The edit does not compare.""",
        "X10 (nothing but what was begun)",
        "a query that does not repeat itself, run again before its batch is committed",
        (
            Edit(
                "octavo.broker.bulkload.rules:beginning",
                "if record.content != content:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "every-batch-the-same-epoch",
        0,
        "sink_producer.py",
        "batches of a query share a producer epoch, so later ones look like repeats",
        """The epoch sets the batches of a query apart; each begins with sequence 0. The edit leaves
        it out: a broker knows the numbers, answers that it has the rows, and has those of another
        batch.""",
        "S9 (what was answered is there)",
        "two batches of one query",
        (Edit("octavo.spark.sink_producer:producer_of", "batch % _EPOCHS)", "0)"),),
    ),
)
