"""Planted bugs of a bookie: journal, checkpoint, fence, identity, denials."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "corruption-answered-absent",
        3,
        "BookKeeper #2908",
        'a bookie answers "no such entry" when it cannot read a damaged entry log',
        """A bookie that could not read an entry log answered as if the entry did not exist, and
        recovery cut the ledger there. So a single bad sector lost entries that other bookies still
        held.""",
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
        "with several ledger folders, replay starts at the highest mark",
        """Each folder had its own mark and was flushed by itself, but replay began at the highest
        mark. Entries that a slower folder had not flushed were then in neither journal nor log.""",
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
        "a flush is skipped and the journal is trimmed anyway",
        """Checkpoints that could not be compared counted as equal. So the flush between them was
        skipped, while the journal before the later one was deleted.""",
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
        "replay of the journal skips fence records",
        """Replay skipped fence and master-key records in the journal. After a crash, the bookie
        accepted adds from a writer that it had fenced.""",
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
        """The fence is still in the journal's queue when the answer goes out. A crash at that
        moment forgets a promise on which the recovery relies.""",
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
        "a fence is not written to the journal",
        """The fence is in memory, and on disk only after the next checkpoint. The edit answers
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
        "adds are acked before they are synced",
        """The write is in the page cache when the ack goes out; the next write brings the sync.""",
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
        "a failed fsync is tried again, and its success is believed",
        """After a failed fsync the kernel considers the pages clean: a second call succeeds
        although nothing was written.""",
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
        "the folder is not synced after a new journal file is created",
        """The file and its contents are synced, but its name is not. After a power failure the
        folder does not list the file, and its entries are gone without a trace.""",
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
        "a bookie starts with an empty disk under its old identity",
        """A bookie that had lost its disk returned under its old name and denied entries that it
        had acked.""",
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
        "a checkpoint without entries moves the mark but does not write fences and LACs",
        """With an empty write cache, the flush returned early, before fences and explicit LACs
        were written, and the mark moved past their journal records. The edit drops the changed
        states when there are no entries.""",
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
        "an explicit LAC is not journaled, and a restart forgets it",
        """A bookie told a reader a LAC, and forgot it in a restart. The edit takes the LAC into
        memory and answers, without a journal record.""",
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
        "replay accepts a half-written journal block without checking its checksum",
        """Journal records had no checksum, so a half-written block after a power failure was taken
        for entries. The edit does not check the checksum of a block's body.""",
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
        "all journals are trimmed at the mark of the first",
        """Each journal has its own position in the mark. The edit deletes files of all journals
        below the position of the first.""",
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
        "a bookie whose data was lost starts without going into limbo",
        """The operator lets the bookie start on an empty folder, and from then on it answers with
        certainty. The edit does not record for which ledgers it must not.""",
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
        'a bookie in limbo answers "no such entry" for entries that it may have lost',
        """The bookie knows that it lost a disk, and answers "no such entry", which a recovery
        counts as proof. The edit takes a missing entry for one that never existed.""",
        "P41, S3 (P29)",
        "a disk that is replaced by an empty one, the loss accepted, then reads or a recovery",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl.require_certain",
                "if self.limbo.covers(ledger_id):",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "read-only-for-ever",
        0,
        "S8",
        "a bookie stays read-only after its full disk has room again",
        """The edit never leaves the read-only mode.""",
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
        "the scrubber finds damage and does not report it",
        """The edit drops the scrubber's findings, so the damage stays unknown until a reader meets
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
