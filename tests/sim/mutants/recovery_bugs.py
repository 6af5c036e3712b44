"""Planted bugs of a ledger's recovery: fencing, reading on, writing back, closing."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "recovery-reads-do-not-fence",
        1,
        "BookKeeper #2614",
        "recovery fences only with its LAC read, not with its entry reads",
        """Up to BookKeeper 4.13 only the read of the LAC fenced a bookie. A bookie that this read
        had not reached denied an entry to the recovery, and then stored the same entry for the old
        writer, whose caller got an ack. The recovery had already closed the ledger before that
        entry.""",
        "S3 (P3, P28)",
        "writers against recoverers, slow or cut links",
        (
            Edit(
                "octavo.ledger.recover.recovery:Recovery._ask",
                "connection.read(self._ledger_id, entry_id, answered, "
                "flags=_READ_FLAGS, key=self._key)",
                "fence = {'flags': _READ_FLAGS, 'key': self._key}\n"
                "        only_read = {'flags': Flag.HIGH_PRIORITY}\n"
                "        how = fence if entry_id < 0 else only_read\n"
                "        connection.read(self._ledger_id, entry_id, answered, **how)",
            ),
        ),
    ),
    Mutant(
        "recovery-starts-at-minus-one",
        2,
        "BookKeeper #2615",
        "recovery starts at entry −1, not where the last fragment begins",
        """The bookies of a new last fragment know nothing of the ledger and answer LAC −1. Recovery
        began there, and wrote fragments below the last one, with ensembles that never held those
        entries.""",
        "S7 (P10, P32)",
        "an ensemble change shortly before a recovery",
        (
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState.fenced",
                "max(*self._fences.values(), self._metadata.fragments[-1].first_entry - 1)",
                "max(self._fences.values())",
            ),
            Edit(
                "octavo.ledger.write.writer_state:WriterState._changed",
                'assert kept[-1].first_entry <= newest.first_entry, "P32: never below the newest '
                'fragment"',
                "pass",
            ),
        ),
    ),
    Mutant(
        "hanging-bookie-blocks-fencing",
        7,
        "BookKeeper #1067, BOOKKEEPER-365",
        "a bookie that never answers blocks fencing forever",
        """Recovery waited until every bookie of the ensemble was fenced, so a single hung process
        kept a ledger open forever. Now Qw − Qa + 1 bookies of each write set are enough.""",
        "S8 (P35)",
        "a bookie that is gone for good, or hangs, at a recovery",
        (
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState.fenced",
                "if not self._quorum.covers(self._fences.keys()):",
                "if len(self._fences) < self._quorum.ensemble_size:",
            ),
        ),
    ),
    Mutant(
        "recovery-adds-without-their-flag",
        14,
        "BookKeeper #4163",
        "recovery writes back without the recovery flag, and the fenced bookies refuse",
        """Recovery sent copies as ordinary adds. The bookies, which this same recovery had fenced,
        refused them, so the ledger could never be closed.""",
        "S8 (P35, P36)",
        "any recovery of a ledger with entries above the LAC",
        (
            Edit(
                "octavo.ledger.recover.recovery:Recovery._send",
                "add_prefix(self._key, len(found.data), self._add_flags)",
                "add_prefix(self._key, len(found.data), self._add_flags & ~Flag.RECOVERY_ADD)",
            ),
        ),
    ),
    Mutant(
        "close-by-the-lac-of-a-minority",
        0,
        "BOOKKEEPER-355, ledger-protocol",
        "recovery closes a ledger at the LAC of the first bookie that answers",
        """The LAC that a bookie knows is only a lower bound. The edits take the first answer to
        the fence for the end of the ledger, and read no further.""",
        "S3 (P3)",
        "writers against recoverers",
        (
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState.fenced",
                "if not self._quorum.covers(self._fences.keys()):",
                "if not self._fences:",
            ),
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState._start_reading",
                "return self._read_on()",
                "self._end = -1 if start < 0 else None\n"
                "    return self._read_on() + self._close_if_complete()",
            ),
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState._take",
                "return  # confirmed before: read only for its length",
                "self._end = self._start\n        self._polls.clear()\n        return",
            ),
        ),
    ),
    Mutant(
        "write-back-to-one-bookie",
        0,
        "ledger-protocol, P5",
        "recovery writes what it found back to a single bookie",
        """An entry on a single replica may never have been acked; recovery makes it durable before
        it closes the ledger above it. The edits send it to one bookie and accept that bookie's
        ack as enough: a closed ledger then has an entry on a single disk.""",
        "S8 (P5, P1)",
        "a recovery while adds are under way",
        (
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState._start_reading",
                "self._writing = WriterState(\n        self._metadata,",
                "self._writing = WriterState(\n        replace(self._metadata, ack_quorum=1),",
            ),
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState._write_back",
                "for p in self._writing.live",
                "for p in self._writing.live[: 1 if self._quorum.everywhere else None]",
            ),
        ),
    ),
    Mutant(
        "fence-coverage-by-count",
        0,
        "BookKeeper PR #2281, #2303 (P26)",
        "fences are counted, not checked for each write set (E > Qw)",
        """Qw − Qa + 1 answers counted as enough, from any bookies. With E > Qw, a whole write set
        may then be unfenced, and the old writer gets acks from it. The edit counts answers.""",
        "S5 (P19, P26)",
        "a ledger with E > Qw recovered while its writer lives",
        (
            Edit(
                "octavo.ledger.quorum:Quorum.covers",
                "return self._every_window_has(answered, self.denials)",
                "return len(answered) >= self.denials",
            ),
        ),
    ),
    Mutant(
        "unknown-counted-as-negative",
        0,
        "P29",
        "recovery counts a bookie that does not answer as a denial",
        """A bookie that is down, or cannot read its disk, says nothing about an entry. The edit
        counts it as a denial, so two unreachable bookies cut the ledger.""",
        "S3 (P29, P3)",
        "a recovery while bookies are down or their disks fail",
        (
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState.entry_unknown",
                "poll.unknown[bookie_id] = reason",
                "poll.denied.add(bookie_id)",
            ),
        ),
    ),
    Mutant(
        "recovery-reads-new-ensembles",
        0,
        "P31",
        "recovery reads entries from bookies that it has only just added",
        """Bookies that recovery adds for failed ones hold only what it wrote back. The edit reads
        later entries from the changed ensemble: the new bookie denies them, and a second denial
        cuts the ledger.""",
        "S3 (P31, P3)",
        "a recovery that replaces a bookie in the middle",
        (
            Edit(
                "octavo.ledger.recover.recovery_state:RecoveryState._read_on",
                "bookies = self._metadata.fragment_of(entry_id).bookies",
                "bookies = self._writing.metadata.fragment_of(entry_id).bookies",
            ),
        ),
    ),
)
