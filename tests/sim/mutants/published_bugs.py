"""Planted bugs of the batches that Spark's sink publishes."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "committed-before-it-is-published",
        0,
        "commit.py (publish)",
        "a batch is committed when the first of its partitions has its share",
        """A commit says that all rows are there, and afterwards the batch is never published
        again. The edit waits for one partition, so the shares of the others can be lost.""",
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
        """Producer and sequence of a batch are derived from its number, so they must stand for the
        same rows; otherwise parts of two attempts are stored. The record notes the rows with
        which a batch was begun. The edit does not compare them.""",
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
        "batches of a query share a producer epoch, so later batches look like repeats",
        """The epoch distinguishes the batches of a query, because each begins with sequence 0. The
        edit leaves it out: a broker takes a batch for a repeat of another, and answers that it
        has the rows.""",
        "S9 (what was answered is there)",
        "two batches of one query",
        (Edit("octavo.spark.sink_producer:producer_of", "batch % _EPOCHS)", "0)"),),
    ),
)
