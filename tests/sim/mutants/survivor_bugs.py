"""Bugs that survived every test in an outside review: a dropped line that looked redundant, a
simplified condition, a number that no simulated cluster reached.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant
from tests.sim.mutants.tested import TestedBug

JUDGED = "judged from outside"

MUTANTS = (
    Mutant(
        "fence-in-a-lane-of-its-own",
        0,
        JUDGED,
        "a fence overtakes adds that were accepted before it",
        """Without a lane, a journal record keeps its place behind adds that were accepted before
        it. With its own lane, a fence overtakes them when a connection has more waiting than
        its turn allows, and they are acked after the fence was answered.""",
        "P24, P25 (what was let in before a fence is answered before it)",
        "recoveries of ledgers under way; turns of a few bytes (`QUANTUM_BYTES`)",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl._write",
                "len(record), done)",
                'len(record), done, "meta")',
            ),
        ),
        "ledger",
    ),
)

BUGS = (
    TestedBug(
        "marks-pruned-blindly",
        "marks of bulk loads that are not complete are removed",
        """A partition notes which batch of a bulk load it has taken in. If the note is removed
        while the batch may still be requested again, the part is taken in twice.""",
        "X2",
        "unit/broker/test_bulk_load.py",
        (
            Edit(
                "octavo.broker.partition.part_loader:PartLoader._finished",
                "if rules.is_finished(mark, batch, record):",
                "if record is not None:",
            ),
        ),
    ),
    TestedBug(
        "rollover-does-not-wait",
        "a roll-over closes the old ledger before its adds are confirmed",
        """The old ledger is closed at its last confirmed add: its later messages are lost, and
        messages in the new ledger stay.""",
        "S9",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.partition.rollover:Rollover._replace",
                "await publisher.confirmed_up_to(old_end)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "rollover-does-not-hear",
        "a roll-over does not notice that the old ledger failed",
        """The edit calls a similar function, which releases the waiter as if all adds were
        confirmed. The record then names the new ledger, although a message before it is lost.""",
        "S9",
        "unit/broker/test_ledger_list.py",
        (
            Edit(
                "octavo.broker.partition.publisher:Publisher.fail",
                "done.set_exception(self._unknown(error))",
                "done.set_result(None)",
            ),
        ),
    ),
    TestedBug(
        "trim-by-an-old-limit",
        "a trim uses the limit from before it waited for the metadata store",
        """A subscription seeks back while the trim waits for the metadata store, and loses its
        messages.""",
        "S9 (no message is trimmed that a subscription needs)",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.partition.maintenance:Maintenance._trim",
                "limit = self._subscriptions.oldest_unacked()\n    if",
                "limit = early = self._subscriptions.oldest_unacked()\n    if",
            ),
            Edit(
                "octavo.broker.partition.maintenance:Maintenance._trim",
                "limits = [self._subscriptions.oldest_unacked(), scanned_from]",
                "limits = [early, scanned_from]",
            ),
        ),
    ),
    TestedBug(
        "seek-below-a-trim-under-way",
        "a seek goes to messages that a trim is removing",
        """The edit uses a similar name: the first offset that exists now, not the first offset
        after the trim. The seek answers with an offset that is about to be removed.""",
        "S9 (no message is trimmed that a subscription needs)",
        "cluster/test_retention.py",
        (
            Edit(
                "octavo.broker.subscriptions.subscription:Subscription.seek",
                "self._log.kept_from",
                "self._log.earliest_offset",
            ),
        ),
    ),
    TestedBug(
        "markers-dropped-before-the-state",
        "a deletion marker is dropped before the deletion is in the ledger state",
        """Once the mark has passed the journal's deletion record, a restart believes the ledger
        state again, unless the deletion is recorded there too.""",
        "P44, P40",
        "unit/bookie/test_compaction.py",
        (
            Edit(
                "octavo.bookie.write.checkpoint:Checkpointer.drop_markers",
                "if not self._states.is_changed(ledger_id) and may_go(ledger_id)",
                "if may_go(ledger_id)",
            ),
        ),
    ),
    TestedBug(
        "failed-checkpoint-taken-as-done",
        "compaction continues after a checkpoint that failed halfway",
        """The checkpoint failed after its mark had moved, so the index lacks some records.
        Compaction tells the index that it is complete, and those entries are found nowhere.""",
        "P38, P41",
        "unit/bookie/test_compaction.py",
        (
            Edit(
                "octavo.bookie.write.checkpoint:Checkpointer._check_whole",
                "self.mark is None or self._pending is not None",
                "self.mark is None",
            ),
        ),
    ),
    TestedBug(
        "joined-over-an-overlay",
        "the write cache joins runs although a resent entry lies between them",
        """Small runs in a row are joined. After a resent entry the count of small runs must begin
        again, or the join mixes pieces that do not follow one another.""",
        "S4, P38 (an entry is what was stored)",
        "unit/bookie/test_reads.py",
        (
            Edit(
                "octavo.bookie.write.cache:IntervalMap._overlay",
                "self._small = 0\n    pieces",
                "pieces",
            ),
        ),
    ),
    TestedBug(
        "next-ledger-before-the-end",
        "a page of a compacted view skips the rest of a ledger",
        """The number of entries for a page is estimated, so a page may have room left in the middle
        of a ledger. The edit continues in the next ledger, and no page has the messages in
        between.""",
        "X9 (a page has all of the view)",
        "unit/broker/test_compaction.py",
        (
            Edit(
                "octavo.broker.partition.compacted:CompactedReader._read",
                " or taken[-1].next_offset <= ledger.last_offset",
                "",
            ),
        ),
    ),
    TestedBug(
        "kept-from-the-first-use",
        "a bulk load's id is forgotten seven days after its first use, not its last",
        """A query uses its id for as long as it lives. Counted from the first batch, the id is
        forgotten while the query runs, and a repeated batch is stored twice.""",
        "X1",
        "unit/broker/test_bulk_load.py",
        (
            Edit(
                "octavo.broker.bulkload.driver:BulkLoads.sweep",
                "self._is_old(record.changed_ms)",
                "self._is_old(record.since_ms)",
            ),
        ),
    ),
    TestedBug(
        "patience-of-another-time",
        "an open ledger counts as abandoned since the first loss, though its bookies returned",
        """The writer has had its bookies again in between. The edit keeps the old start of the
        wait, so the next short absence fences the writer at once.""",
        "S8 (a writer that lives is not fenced by who copies)",
        "unit/ledger/test_copies.py",
        (
            Edit(
                "octavo.ledger.rereplication.keeper:CopyKeeper._close_if_abandoned",
                "self._waited_for.pop(ledger_id, None)",
                "pass",
            ),
        ),
    ),
)
