"""Planted bugs of a bookie that compares adds with stored entries; a test has to find them.

As in tested_bookie_bugs.py, they are outside the canon.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "entry-overwritten",
        "an add overwrites a stored entry",
        "This was the earlier behaviour. A client that breaks the protocol changes an acked entry.",
        "P7 (S4)",
        "cluster/test_secured_ledgers.py",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.admit",
                "return _OK if first > reached else None",
                "return _OK",
            ),
        ),
    ),
    TestedBug(
        "compared-before-it-is-durable",
        "an add is compared with stored entries while another add of its id is being journaled",
        """The add that is being journaled is in no cache yet, so there is nothing to compare with,
        and both are stored.""",
        "P7 (S4)",
        "cluster/test_secured_ledgers.py",
        (
            Edit(
                "octavo.bookie.write.duplicate_adds:DuplicateAdds._work_off",
                "await self._journals.settled(ledger_id)",
                "pass",
            ),
        ),
    ),
    TestedBug(
        "fence-overtakes-a-comparison",
        "an add is stored after its comparison although a fence came first",
        "The add was allowed when it came, so the second check looks redundant.",
        "P24 (S5)",
        "cluster/test_secured_ledgers.py",
        (
            Edit(
                "octavo.bookie.write.duplicate_adds:DuplicateAdds._store",
                "code = self._admission(batch)",
                "code = Code.OK",
            ),
        ),
    ),
    TestedBug(
        "kept-though-the-journal-stopped",
        "a repeated add succeeds after a failed sync",
        """The entry itself is durable, but after a failed sync the bookie must answer no add with
        success.""",
        "P38",
        "unit/bookie/test_storage_faults.py",
        (
            Edit(
                "octavo.bookie.write.duplicate_adds:_kept",
                "Code.IO if journal.is_stopped else Code.OK",
                "Code.OK",
            ),
        ),
    ),
    TestedBug(
        "kept-past-the-journal",
        "a repeated add does not wait for the running sync",
        """The loop believes that the journal works; the disk has failed, and its answer is on the
        way.""",
        "P38",
        "unit/bookie/test_storage_faults.py",
        (
            Edit(
                "octavo.bookie.write.duplicate_adds:DuplicateAdds._store",
                "journal.append([], 0, partial(_kept, journal, batch, done), lane)",
                "_kept(journal, batch, done, None)",
            ),
        ),
    ),
    TestedBug(
        "confirmed-by-itself",
        "an entry may claim a LAC equal to its own id",
        """An off-by-one: the LAC of an entry is below its own id.""",
        "P8 (S6)",
        "cluster/test_secured_ledgers.py",
        (
            Edit(
                "octavo.bookie.adds:split_adds",
                "if lac >= entry_id >= 0 and",
                "if lac > entry_id >= 0 and",
            ),
        ),
    ),
    TestedBug(
        "checkpoint-takes-a-producer-back",
        "replay moves a producer back to an older checkpoint",
        """A checkpoint that waits while the state ledger is replaced is written behind a newer
        snapshot. What the snapshot said is never repeated.""",
        "a repeat is known after a take-over",
        "unit/broker/test_state_log.py",
        (
            Edit(
                "octavo.broker.state.format:State._apply",
                "if known is None or known.batches[-1].first_offset <= told[-1].first_offset:",
                "if told:",
            ),
        ),
    ),
    TestedBug(
        "coverage-goes-back",
        "replay lowers the offset up to which producers are known",
        """An operation behind a snapshot may cover less than the snapshot. The batches in between
        are then scanned again at each opening.""",
        "a repeat is known after a take-over",
        "unit/broker/test_state_log.py",
        (
            Edit(
                "octavo.broker.state.format:State._apply",
                "max(self.producers_upto, upto)",
                "upto",
            ),
        ),
    ),
)
