"""Bugs of v3 frames, and of what they brought up, that a test finds."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "deletion-denies-too-early",
        "a fence of a ledger that is being deleted is answered before the deletion is on the disk",
        """"No such ledger" ends a recovery's doubts about this bookie. Power fails, and the bookie
        has a ledger again, not fenced, whose writer goes on.""",
        "P23",
        "cluster/test_v3_frames.py",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.fence",
                "        await self.delete(ledger_id)\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "v3-run-not-compared",
        "v3 adds of one length are taken for consecutive ones, their ids are not compared",
        """Most are. Where two writers share a connection, or one entry is sent again, answers name
        entries that nobody sent.""",
        "answers are those to what was asked",
        "unit/protocol/test_v3_runs.py",
        (
            Edit(
                "octavo.protocol.v3_runs:_count_alike",
                "for column, values in wanted:",
                "for column, values in wanted[:0]:",
            ),
        ),
    ),
    TestedBug(
        "v3-ids-believed",
        "the ids that a v3 add names are answered, those of its entry are stored",
        """v2 has them once. In v3 they may differ, and an answer acknowledges what is not here.""",
        "S1",
        "cluster/test_v3_frames.py",
        (
            Edit(
                "octavo.bookie.wire.v3_adds:_refusal",
                "if (ledger_id, entry_id) != (add.ledger_id, add.entry_id):",
                "if False:",
            ),
        ),
    ),
)
