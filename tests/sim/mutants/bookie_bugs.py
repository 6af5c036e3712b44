"""Planted bugs of a bookie: journal, checkpoint, fence, identity, what it denies."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "corruption-answered-absent",
        3,
        "BookKeeper #2908",
        "a damaged entry log is answered with: no such entry",
        """A log that could not be read was answered like an entry that is not there, and recovery
        cut the ledger at it: one bad sector became the loss of what other bookies held. The edit
        takes what cannot be read for absent.""",
        "P41, S3 (P29)",
        "bit rot or read errors in an entry log, then reads or a recovery",
        (
            Edit(
                "octavo.bookie.read.cold_reads:ColdReads._read",
                "return self._read_once(ledger_id, entry_id, ahead)",
                "from octavo.protocol.codes import BookieIOError\n"
                "            try:\n"
                "                return self._read_once(ledger_id, entry_id, ahead)\n"
                "            except BookieIOError:\n"
                "                return []",
            ),
        ),
    ),
    Mutant(
        "highest-mark-of-several-folders",
        8,
        "BookKeeper #3329",
        "with several ledger folders the highest mark counts, though one is behind",
        """Each folder kept a mark of its own and was flushed by itself; replay began at the
        highest, so what the slower folder had not flushed was in neither journal nor log. The edit
        moves the mark of the folders that have nothing to flush ahead of the others; the highest
        one counts, as ever.""",
        "P39, P38 (S1)",
        "a crash in the middle of a checkpoint",
        (
            Edit(
                "octavo.bookie.write.checkpoint:Checkpointer._write",
                "    runs = extents(memtable, EXTENT_BYTES_MAX)",
                "    if self.mark is not None and len(self._directories) > 1:\n"
                "        from dataclasses import replace\n"
                "        ahead = replace(self.mark, journals=where)\n"
                "        await self._call(write_mark, self._disk, self._directories[1:], ahead)\n"
                "    runs = extents(memtable, EXTENT_BYTES_MAX)",
            ),
        ),
    ),
    Mutant(
        "checkpoint-skipped",
        9,
        "BookKeeper #4844",
        "a flush is skipped and the journal is trimmed all the same",
        """Checkpoints that could not be compared were taken for equal, so the flush between them
        was left out while the journal before the later one was removed. The edit leaves out the
        entries when the journal has gone on to another file since the last checkpoint.""",
        "P39, P38 (S1)",
        "journals that roll over between checkpoints",
        (
            Edit(
                "octavo.bookie.write.checkpoint:Checkpointer._write",
                "    runs = extents(memtable, EXTENT_BYTES_MAX)",
                "    skipped = self.mark is not None and (\n"
                "        where[0].file_id != self.mark.journals[0].file_id\n"
                "    )\n"
                "    runs = extents(Memtable() if skipped else memtable, EXTENT_BYTES_MAX)",
            ),
        ),
    ),
    Mutant(
        "fence-not-replayed",
        12,
        "BookKeeper #867",
        "a restart forgets the fences that only the journal holds",
        """Fence and master-key records in the journal were passed over at replay. The edit does
        that: after a crash the bookie takes adds of a writer that it had shut out.""",
        "P24 (S5, S3)",
        "a bookie that crashes between a fence and the next checkpoint",
        (
            Edit(
                "octavo.bookie.ledgers.rules:repeat",
                "state.fenced = True",
                "pass",
            ),
        ),
    ),
    Mutant(
        "fence-acked-before-durable",
        19,
        "P24, BookKeeper #208",
        "a fence is answered before it is durable",
        """The fence is in the journal's queue and the answer is out: a crash in between forgets a
        promise that the recoverer relies on. The edit does not wait.""",
        "P24 (S5, S3)",
        "a bookie that crashes just after it was fenced, with its writer alive",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.fence",
                "await asyncio.shield(pending)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "volatile-fence",
        0,
        "P24, BP-46",
        "a fence is not journaled",
        """The fence holds in memory, and on disk only after the next checkpoint. The edit answers
        without a journal record.""",
        "P24 (S5, S3)",
        "a bookie that crashes after it was fenced, with its writer alive",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.fence",
                "self._unsure_fences.add(ledger_id)\n        self._states.touch(ledger_id)",
                "self._states.touch(ledger_id)\n        return",
            ),
        ),
    ),
    Mutant(
        "ack-before-fsync",
        20,
        "P38",
        "adds are acked before they are on the disk",
        """The write is in the page cache and the ack is out; the sync comes with the next write.
        The edits sync before the write instead of after it.""",
        "P38 (S1)",
        "a power failure",
        (
            Edit(
                "octavo.bookie.journal.journal:JournalWriter.write",
                "    if self._sync and sync:\n"
                "        file.datasync()\n"
                "        self._synced = end\n",
                "",
            ),
            Edit(
                "octavo.bookie.journal.journal:JournalWriter.write",
                "    head = encode_block_header(",
                "    if self._sync:\n        file.datasync()\n        self._synced = start\n"
                "    head = encode_block_header(",
            ),
            Edit(
                "octavo.bookie.journal.journal:Journal._commit_one",
                "if late and self.is_behind:",
                "if late and early and self.is_behind:",
            ),
        ),
    ),
    Mutant(
        "fsync-retried",
        21,
        'fsyncgate; ATC\'20 "Can applications recover from fsync failures?"',
        "a failed fsync is tried again, and believed",
        """After a failed fsync the kernel holds the pages for clean: the second call succeeds and
        nothing was written. The edit tries again.""",
        "P38 (S1)",
        "an fsync that fails, then a crash",
        (
            Edit(
                "octavo.bookie.journal.journal:JournalWriter.write",
                "        file.datasync()\n",
                "        from octavo.bookie.disk.files import SyncFailed\n"
                "        try:\n"
                "            file.datasync()\n"
                "        except SyncFailed:\n"
                "            file.datasync()\n",
            ),
        ),
    ),
    Mutant(
        "rename-without-directory-fsync",
        22,
        "ALICE (OSDI'14)",
        "a new journal file's name is not made durable",
        """The file and its content are synced, its name is not: after a power failure the folder
        does not know it, and the entries in it are gone without a trace. The edit leaves out the
        sync of the folder.""",
        "P38 (S1)",
        "a power failure after the journal has rolled over",
        (
            Edit(
                "octavo.bookie.journal.journal:JournalWriter.open",
                "self._disk.sync_directory(self._directory)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "empty-disk-joins",
        23,
        "BookKeeper #4812, CK-1",
        "an empty disk joins under the old identity",
        """A bookie whose disk was lost came back under its name and denied, in good faith, what it
        had acked. The edit lets a folder without a cookie pass.""",
        "P42 (S3)",
        "a bookie whose disk is replaced by an empty one",
        (
            Edit(
                "octavo.bookie.ledgers.cookies:check_cookies",
                "    if cookie is None:\n            raise CookieRefused(\n"
                '                f"folder {folder} carries no cookie, but',
                "    if cookie is None:\n            continue\n"
                "            raise CookieRefused(\n"
                '                f"folder {folder} carries no cookie, but',
            ),
        ),
    ),
    Mutant(
        "state-not-flushed-with-an-empty-cache",
        0,
        "BookKeeper PR #4843",
        "with no entries to flush the ledger state is not flushed, but the mark moves",
        """When the write cache was empty the flush returned early, before fences and explicit LACs
        were written, and the mark moved past their journal records. The edit leaves the changed
        states out when there are no entries.""",
        "P39, P24 (S5)",
        "a fence, an idle checkpoint, a crash",
        (
            Edit(
                "octavo.bookie.write.checkpoint:Checkpointer._write",
                "    elif records:",
                "    elif records and memtable.ledgers:",
            ),
        ),
    ),
    Mutant(
        "explicit-lac-not-persisted",
        0,
        "BookKeeper #1527, #1533",
        "a LAC that came alone is lost in a restart",
        """A reader was told a LAC by a bookie that forgot it in a restart. The edit takes the LAC
        into memory and answers, without a journal record.""",
        "P8 (what a bookie told, it still knows)",
        "an idle writer, a bookie that crashes, tailing readers",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.set_explicit_lac",
                "await self._write(ledger_id, record, take)",
                "take()\n    self._states._dirty.discard(ledger_id)",
            ),
        ),
    ),
    Mutant(
        "torn-tail-taken-as-good",
        0,
        "BookKeeper #4659",
        "garbage in the torn tail of a journal is replayed",
        """Journal records carried no checksum: what a power failure left half written was taken
        for entries. The edit does not look at the checksum of a block's body.""",
        "P40, P7 (S4)",
        "a power failure that tears the last write",
        (
            Edit(
                "octavo.bookie.journal.reader:JournalReader._blocks_of",
                "if block is None or not body_is_good(block, body):",
                "if block is None:",
            ),
        ),
    ),
    Mutant(
        "one-journal-trims-all",
        0,
        "BookKeeper #3329, of journals",
        "with several journals all are trimmed by the mark of the first",
        """Each journal has a position of its own in the mark. The edit removes the files of all of
        them before the first one's.""",
        "P38, P39 (S1)",
        "several journals that roll at different paces",
        (
            Edit(
                "octavo.bookie.journal.journal:Journals.remove_below",
                "position.file_id",
                "positions[0].file_id",
            ),
        ),
    ),
    Mutant(
        "loss-accepted-without-limbo",
        0,
        "BookKeeper BP-46",
        "a bookie starts on a lost disk without remembering that it lost anything",
        """The operator's word lets the bookie start on an empty folder, and from then on it is sure
        of everything. The edit does not write down for which ledgers it is not.""",
        "P42 (S3)",
        "a disk that is replaced by an empty one, the loss accepted",
        (
            Edit(
                "octavo.bookie.ledgers.identity:Identity.data_lost",
                "await self._blocking(write_limbo, self._disk, self._config.ledger_directories, "
                "record)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "limbo-answered-absent",
        0,
        "BookKeeper #4812, BP-46",
        "a bookie in limbo denies what it has lost",
        """It knows that it lost a disk, and answers: no such entry. Recovery takes that for proof.
        The edit takes what is not there for what never was.""",
        "P41, S3 (P29)",
        "a disk that is replaced by an empty one, the loss accepted, then reads or a recovery",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.deny",
                "if self.limbo.covers(ledger_id):",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "read-only-for-ever",
        0,
        "S8",
        "a bookie whose disk was full stays read-only when there is room again",
        """The edit never takes the mode back.""",
        "S8",
        "a disk that fills up and has room again",
        (
            Edit(
                "octavo.bookie.node:BookieNode._judge_space",
                "self._short_of_space = free < limit or",
                "self._short_of_space = was_short or free < limit or",
            ),
        ),
    ),
    Mutant(
        "scrubber-overlooks",
        0,
        "P43",
        "the scrubber walks by what is damaged",
        """The edit drops what the walk has found: nobody knows of the damage before a reader meets
        it.""",
        "P41 (damage is reported)",
        "bit rot in an entry log",
        (
            Edit(
                "octavo.bookie.check.scrub:LogScrub.step",
                "self._report(fault, walked)",
                "pass",
            ),
        ),
    ),
)
