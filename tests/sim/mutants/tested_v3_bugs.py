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
        "foreign-bookies-not-told",
        "bookies of Apache's are not told the LAC of an idle ledger",
        """They take it in v3 frames alone. Until the next add nobody but the writer knows that the
        ledger's last entries are confirmed: readers leave them out, brokers answer 503.""",
        "what is confirmed can be read",
        "issues/test_end_of_an_idle_ledger_on_apaches_bookies.py",
        (
            Edit(
                "octavo.ledger.write.ensemble_writer:EnsembleWriter._announce_lac",
                "self._client.spawn(self._tell_in_v3(bookie.bookie_id, lac))",
                "self._told[bookie.bookie_id] = None",
            ),
        ),
    ),
    TestedBug(
        "signature-of-a-lac-not-checked",
        "a LAC that a bookie of Apache's says came alone is believed, whatever its signature",
        """A bit that falls over makes entries readable that were never confirmed.""",
        "P2",
        "issues/test_end_of_an_idle_ledger_on_apaches_bookies.py",
        (
            Edit(
                "octavo.protocol.entry:unpack_lac",
                ' and bytes(data[LAC_ALONE.size :]) == digest.compute(front, b"")',
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
    TestedBug(
        "deferred-recovery-adds",
        "a recovery's add is answered before it is synced, if it asks for that",
        """A recovery closes the ledger at what was answered. Power fails at the bookies together,
        and the ledger has an end that nobody has.""",
        "P21, P5",
        "cluster/test_v3_frames.py::test_what_recovery_adds_is_synced_whatever_it_asks_for",
        (
            Edit(
                "octavo.bookie.wire.connection:_wishes",
                "flags & (_DEFERRED_SYNC | _RECOVERY_ADD) == _DEFERRED_SYNC",
                "bool(flags & _DEFERRED_SYNC)",
            ),
        ),
    ),
    TestedBug(
        "mark-stays-before-what-was-deferred",
        "a flush does not sync what was deferred, so the mark cannot pass it",
        """The entries are in the log and the journal is never shortened: it fills the disk, and a
        start reads all of it.""",
        "P39, space",
        "unit/bookie/test_deferred_sync.py",
        (
            Edit(
                "octavo.bookie.write.flushing:Flushing.checkpoint",
                "        await self._journals.catch_up()",
                "        pass",
            ),
        ),
    ),
)
