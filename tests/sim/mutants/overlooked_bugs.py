"""Planted bugs outside the canon, found by seeds: mistakes that a reviewer may overlook."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "duplicate-answered-before-it-is-durable",
        0,
        "publisher.py",
        "a duplicate is answered before the original message is durable",
        """An off-by-one: the answer waits for all messages before this one, but not for this one.
        Its sender gets an offset that a take-over may give to another message.""",
        "S9, S1",
        "repeats while the first attempt is under way",
        (
            Edit(
                "octavo.broker.partition.publisher:Publisher.publish",
                "await self.confirmed_up_to(job.first_offset + 1)",
                "await self.confirmed_up_to(job.first_offset)",
            ),
        ),
        "topic",
    ),
    Mutant(
        "stored-and-not-touched",
        0,
        "ledger_control.py",
        "stored entries do not mark their ledger's state as changed",
        """The last entry and the LAC are in memory, and in the journal until it is trimmed. The
        edit leaves them out of the next checkpoint.""",
        "P8, P39",
        "a checkpoint and a restart",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.stored",
                "    self._states.touch(ledger_id)\n    return True",
                "    return True",
            ),
        ),
    ),
    Mutant(
        "same-fragments-same-record",
        0,
        "records.py",
        "a metadata write counts as done if only the ensembles match",
        """After a lost answer, the record is compared with the wanted one. The edit compares only
        the ensembles, so two processes that close a ledger may each believe in a different
        end.""",
        "S2 (P51)",
        "two who close a ledger at once",
        (
            Edit(
                "octavo.ledger.records:change_record",
                "same = current == metadata",
                "same = current.fragments == metadata.fragments",
            ),
        ),
    ),
    Mutant(
        "bulk-load-without-new-tail",
        0,
        "rollover.py",
        "after a bulk load, the tail cache continues from the ledger before it",
        """A cached run of offsets has no gap. The edit leaves out the new, empty one that follows
        a bulk load.""",
        "S8, S9",
        "a bulk load beside publishers",
        (
            Edit(
                "octavo.broker.partition.rollover:Rollover._replace",
                "publisher.release(segment, self._renew_tail() if insertion.ledgers else None)",
                "publisher.release(segment)",
            ),
        ),
        "topic",
    ),
    Mutant(
        "swept-though-not-all-here",
        0,
        "driver.py",
        "a broker calls a bulk load complete that other brokers have not finished",
        """The broker inserts the parts that it serves. The edit merges two branches, and loses the
        line that says that something is left.""",
        "X3",
        "a commit whose broker dies, on a cluster of several",
        (
            Edit(
                "octavo.broker.bulkload.driver:BulkLoads.sweep",
                "            if partition is None:\n"
                "                done = False\n"
                "            else:\n"
                "                await partition.load_part(bulk_load, record.batch)\n",
                "            if partition is not None:\n"
                "                await partition.load_part(bulk_load, record.batch)\n",
            ),
        ),
        "topic",
    ),
    Mutant(
        "stale-record-after-a-repair",
        0,
        "writer_state.py",
        "a writer's close undoes a re-replication that it conflicted with",
        """Re-replication changed an older fragment. The change must be made again on top of the
        current record; the edit uses only its version, so the close undoes the repair.""",
        "P54 (what was adopted stays)",
        "copies adopted of a ledger whose writer changes its ensemble",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState.conflict",
                "self.metadata, self.version = current, version",
                "self.version = version",
            ),
        ),
        "copies",
    ),
    Mutant(
        "tail-loses-its-place",
        0,
        "cache.py",
        "shortening the tail cache shifts offsets against batches",
        """Two lists of equal length are cut together; one of the two lines looks like a repeat.
        Offsets then stand beside batches of other offsets.""",
        "S9, X9",
        "reads at the tail, where little is kept before the lists are cut",
        (
            Edit(
                "octavo.broker.log.cache:PartitionTail.evict_oldest",
                "        del self._bases[: self._start]\n",
                "",
            ),
        ),
        "topic",
    ),
    Mutant(
        "taken-in-each-time-it-is-asked",
        0,
        "part_loader.py",
        "a partition takes in its part of a batch at each request",
        """Whoever did not hear the answer asks again. The edit looks only whether the partition has
        a part in the batch, not whether it has taken it in.""",
        "X2",
        "a commit whose answer is lost",
        (
            Edit(
                "octavo.broker.partition.part_loader:PartLoader._plan",
                "if part is None or rules.is_loaded(self._record.value.bulk_loads, mark, batch):",
                "if part is None:",
            ),
        ),
        "topic",
    ),
    Mutant(
        "sent-from-what-was-let-go",
        0,
        "bookie_channel.py",
        "a slow bookie is sent entries that the writer has already released",
        """What it does not owe any more may be gone. The line that passes over it looks redundant:
        whoever was sent everything never needs it.""",
        "S8",
        "a bookie that is slow, or comes back, in a ledger of several bookies",
        (
            Edit(
                "octavo.ledger.write.bookie_channel:BookieChannel._due",
                "    self._next = max(self._next, owed)\n",
                "",
            ),
        ),
    ),
)
