"""Planted bugs of a ledger's writer: quorums, ensemble changes, the close, lost replies."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "deferred-change-not-stored",
        4,
        "BookKeeper #1591",
        "an idle writer replaces a bookie without storing the new ensemble",
        """When a bookie failed for an entry that was already acked, the writer replaced it at once
        and stored the new ensemble later, if at all. Entries were then acked by bookies that no
        record named, and a recovery did not find them.""",
        "P15 (S1, S3)",
        "a bookie that fails while its writer is idle, then a crash of the writer",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState.chosen",
                "if not self._publish:",
                "if not self._publish or self.lap == self.lac:",
            ),
        ),
    ),
    Mutant(
        "pending-adds-not-rechecked",
        5,
        "BookKeeper #4097, #4194, #4651",
        "with E > Qw, an ensemble change keeps the acks of the replaced bookie",
        """When the first pending add had no copy on the replaced bookie, it was answered at once,
        together with later adds that had their quorum from that bookie. Recovery does not look
        there, because the record names another bookie.""",
        "P15 (S1)",
        "an ensemble change of a ledger with E > Qw",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState._apply",
                "    self.acks.join(position, self.lac)",
                "    if self.quorum.holds(position, first):\n"
                "            self.acks.join(position, self.lac)",
            ),
        ),
    ),
    Mutant(
        "second-failure-during-a-change",
        6,
        "BookKeeper #1886",
        "a second failure starts a second ensemble change during the first",
        """Two ensemble changes of one ledger ran at once. The answer to the first was applied with
        the plan of the second, and the writer continued with an ensemble that differed from the
        stored one.""",
        "P15, P17 (S1)",
        "two bookies failing within one round trip to the metadata store",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState.failed",
                "if self.state in (State.OPEN, State.STALLED):",
                "if self.state in (State.OPEN, State.STALLED, State.PUBLISHING):",
            ),
        ),
    ),
    Mutant(
        "close-after-a-failed-add",
        16,
        "HerdDB #100",
        "a close after a failed add cuts acked entries",
        """When a writer with a failed add was closed, the close set the ledger's end before entries
        that had been acked.""",
        "S3 (P3)",
        "a close while a bookie is down and no spare is there",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState._closed_record",
                "last_entry=self.lac,",
                "last_entry=self.metadata.fragments[-1].first_entry - 1\n"
                "        if self.down\n"
                "        else self.lac,",
            ),
        ),
    ),
    Mutant(
        "ack-quorum-of-one",
        0,
        "ledger-protocol, P1",
        "a single ack confirms an entry",
        """The edits confirm an entry when one bookie of its write set has it. The loss of that
        disk loses the entry, and a recovery that does not reach that bookie cuts it off.""",
        "P15 (S1, S3)",
        "anything",
        (
            Edit(
                "octavo.ledger.quorum:Acks.confirmed",
                "quorum.ensemble_size - quorum.ack_quorum]",
                "quorum.ensemble_size - 1]",
            ),
            Edit(
                "octavo.ledger.quorum:Acks._enough",
                "stored >= self.quorum.ack_quorum",
                "stored >= 1",
            ),
        ),
    ),
    Mutant(
        "change-keeps-old-acks",
        0,
        "ledger-protocol, P15",
        "an ensemble change counts the replaced bookie's acks for the new bookie",
        """Acks of the replaced bookie above the LAC also count for the new bookie, which does not
        have these entries. The edit does not reset them.""",
        "P15 (S1)",
        "an ensemble change with adds under way",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState._apply",
                "    self.acks.join(position, self.lac)\n",
                "    pass\n",
            ),
        ),
    ),
    Mutant(
        "lost-reply-taken-for-success",
        0,
        "P51",
        "a metadata write whose answer was lost counts as done",
        """A compare-and-set whose answer was lost may have happened or not. The edit assumes that
        it did: writers continue with ensembles that no record names, and two processes that
        close a ledger may each believe in a different end.""",
        "P15, S2 (P51)",
        "requests to the metadata store that get lost",
        (
            Edit(
                "octavo.ledger.records:change_record",
                "except (MetadataUnavailable, SessionExpired):\n                    unsure = True",
                "except (MetadataUnavailable, SessionExpired):\n"
                "                    return ChangeWritten(version + 1)",
            ),
        ),
    ),
)
