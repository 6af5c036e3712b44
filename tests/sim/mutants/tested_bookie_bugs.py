"""Planted bugs of a bookie that a test has to find.

They are outside the canon. Each is a mistake that a reviewer may overlook: a line that looks
redundant and is left out, a simplified condition, an off-by-one, a similar name, an `and` for an
`or`.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

BUGS = (
    TestedBug(
        "newer-half-forgotten",
        "a search in the write cache skips a newer copy of an entry",
        """How far nothing newer lies is the least of both memtables. The edit takes that of the one
        looked at last.""",
        "P7, S4",
        "unit/bookie/test_write_cache.py",
        (
            Edit(
                "octavo.bookie.write.cache:WriteCache.find",
                "last = min(last, held.first_after(entry_id) - 1)",
                "last = held.first_after(entry_id) - 1",
            ),
        ),
    ),
    TestedBug(
        "a-log-without-a-mark-is-torn",
        "without a mark, a log is cut at its first bad record",
        """What the index goes beyond was synced: a bad record there is damage, and good ones
        behind it are the only copies of this bookie.""",
        "P41, P45",
        "unit/bookie/test_lost_mark.py",
        (
            Edit(
                "octavo.bookie.startup.opening:indexed_up_to",
                "return covered or (0, 0)",
                "return 0, 0",
            ),
        ),
    ),
    TestedBug(
        "room-counted-twice",
        "compaction plans a rewrite for which the disk has no room",
        """What a log gives back is what is dead in it: what is live was copied. The edit counts
        all.""",
        "S8 (a full disk)",
        "unit/bookie/test_garbage.py",
        (
            Edit(
                "octavo.bookie.gc.rules:plan",
                "room += log.bytes - log.live_bytes",
                "room += log.bytes",
            ),
        ),
    ),
    TestedBug(
        "woken-by-what-it-knows",
        "a reader is woken by a LAC that it already knows",
        """An off-by-one that loses nothing: each reader at the end asks again at once, always.""",
        "S6, load",
        "unit/bookie/test_lac_watch.py",
        (
            Edit(
                "octavo.bookie.ledgers.control:LacWatches.moved",
                "if lac > after and",
                "if lac >= after and",
            ),
        ),
    ),
    TestedBug(
        "unreadable-record-proves-deletion",
        "a record that cannot be read proves that its ledger is deleted",
        """There are three answers, and the edit asks for the wrong one of them.""",
        "P44 (S1)",
        "unit/bookie/test_deletion_proof.py",
        (
            Edit(
                "octavo.bookie.gc.deletion_proof:DeletionProof.prove",
                "if answer is True]",
                "if answer is not False]",
            ),
        ),
    ),
    TestedBug(
        "limbo-over-in-one-folder",
        "a bookie leaves limbo when one of its folders says so",
        """An `any` for an `all`: after a second loss and a crash between two folders the old
        file's word counts.""",
        "P42",
        "unit/bookie/test_limbo.py",
        (
            Edit(
                "octavo.bookie.ledgers.limbo:read_limbo",
                "over=all(record.over for record in same)",
                "over=any(record.over for record in same)",
            ),
        ),
    ),
    TestedBug(
        "only-the-last-length-counts",
        "journal replay checks only that the first and last entries have equal lengths",
        """Whether all are alike is asked of each; the edit keeps the answer of the last.""",
        "P38, S4",
        "unit/bookie/test_replay_records.py",
        (
            Edit(
                "octavo.bookie.journal.reader:_next_batch",
                "same_length = same_length and its_length == length",
                "same_length = its_length == length",
            ),
        ),
    ),
    TestedBug(
        "cached-run-stays",
        "the read cache keeps an old copy next to a rewritten entry",
        """An off-by-one: a reader gets the older copy.""",
        "S4, P7",
        "unit/bookie/test_storage.py",
        (
            Edit(
                "octavo.bookie.read.cache:ReadCache.drop",
                "at = max(0, bisect_right(firsts, first) - 1)",
                "at = bisect_right(firsts, first)",
            ),
        ),
    ),
    TestedBug(
        "highest-entry-goes-back",
        "the index lowers a ledger's highest entry when an earlier one is added",
        """Runs above the last one put are taken for new and not compared: older copies stay beside
        newer ones.""",
        "P7, S4",
        "conformance/test_index.py",
        (
            Edit(
                "octavo.bookie.index.index:RocksIndex._put",
                "self._last[run.ledger_id] = max(last, run.last)",
                "self._last[run.ledger_id] = run.last",
            ),
        ),
    ),
    TestedBug(
        "mark-without-the-state",
        "comparing two marks ignores the ledger state",
        """One that has more entries and fewer fences counts as the later one.""",
        "P39, P24",
        "unit/bookie/test_mark.py",
        (
            Edit(
                "octavo.bookie.journal.mark:Mark.covers",
                "        and self.state_position >= other.state_position\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "census-complete-though-unread",
        "deletions are forgotten although a log could not be read",
        """What is in that log rises again when its ledger's deletion is forgotten. The edit leaves
        out one line of an error path.""",
        "P44",
        "unit/bookie/test_collector.py",
        (
            Edit(
                "octavo.bookie.gc.log_metadata:EntryLogMetadata.take",
                "            complete = False\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "unsure-deletions-not-repeated",
        "a deletion that was not journaled is not tried again",
        """It holds in memory; its log stays for ever.""",
        "space",
        "unit/bookie/test_collector.py",
        (
            Edit(
                "octavo.bookie.gc.collector:Collector._delete_ledgers",
                "[*storage.compactor.unsure_deletions(), *verdict.confirmed]",
                "[*verdict.confirmed]",
            ),
        ),
    ),
    TestedBug(
        "unsure-fence-answered",
        "a fence whose journal write failed is answered as durable the next time",
        """In memory it holds, so the second half of the condition looks redundant. A crash forgets
        it.""",
        "P24 (S5)",
        "unit/bookie/test_storage_faults.py",
        (
            Edit(
                "octavo.bookie.ledgers.rules:fence",
                "if state.fenced and sure:",
                "if state.fenced:",
            ),
        ),
    ),
    TestedBug(
        "scrub-clears-what-it-found",
        "the scrubber reports damage and clears it in the same step",
        """What was walked is cleared around what is faulty; the edit does not step over that.""",
        "P43",
        "unit/bookie/test_scrub.py",
        (
            Edit(
                "octavo.bookie.check.scrub:LogScrub._clear_good",
                "            start = walked.location.offset + walked.location.length\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "mark-ahead-of-its-half",
        "after a failed checkpoint, the mark moves beyond the flushed entries",
        """What came since is in the other memtable and in the journal before the mark. The edit
        takes the memtable that was left over, and not the place up to which it goes.""",
        "P38, P39 (S1)",
        "unit/bookie/test_storage_faults.py",
        (
            Edit(
                "octavo.bookie.write.checkpoint:Checkpointer.run",
                "memtable, where = self._pending or (self._cache.swap(), where)",
                "memtable, _ = self._pending or (self._cache.swap(), where)",
            ),
        ),
    ),
    TestedBug(
        "older-copy-cached",
        "an older copy of an entry enters the cache after a newer one was flushed",
        """The flush may have brought a newer copy of the entry, and has dropped the older one from
        the cache. The edit puts it back.""",
        "S4, P7",
        "unit/bookie/test_reads.py",
        (
            Edit(
                "octavo.bookie.read.cold_reads:ColdReads._landed",
                "    if flight.epoch == self._epoch:\n"
                "        for run in found:\n"
                "            self._cache.put(run)\n",
                "    for run in found:\n        self._cache.put(run)\n",
            ),
        ),
    ),
    TestedBug(
        "joined-an-older-read",
        "a reader joins a read that looked the entry up before a flush",
        """The read is under way and has the entry; which copy of it was decided when it began.""",
        "S4, P7",
        "unit/bookie/test_reads.py",
        (
            Edit(
                "octavo.bookie.read.cold_reads:_Flight.may_bring",
                "self.epoch == epoch and self.first",
                "self.first",
            ),
        ),
    ),
    TestedBug(
        "only-the-first-journal-stops",
        "a failed sync stops only one other journal",
        """With one journal it is all of them. What the others report durable goes on while the
        process has to end.""",
        "P38",
        "unit/bookie/test_journals.py",
        (
            Edit(
                "octavo.bookie.journal.journal:Journals.stop",
                "    for journal in self._all:\n        journal.stop(error)",
                "    self._all[0].stop(error)",
            ),
        ),
    ),
    TestedBug(
        "map-of-all-logs-so-far",
        "a log's ledger map also names the ledgers of earlier logs",
        """A new log begins with an empty map. The edit goes on with the old one: garbage is not
        found, and a log whose map names more than is in it never goes.""",
        "space",
        "unit/bookie/test_entry_log.py",
        (Edit("octavo.bookie.entrylog.log:EntryLogs.roll", "    self._bytes_of = {}\n", ""),),
    ),
    TestedBug(
        "removed-whatever-its-map-says",
        "a log is deleted although its map names ledgers that were not found",
        """Each record was read and none of it is live. That the log's own map knows of more is the
        last witness of a record that was stepped over.""",
        "P45",
        "unit/bookie/test_compaction.py",
        (
            Edit(
                "octavo.bookie.gc.compaction:Compactor._pass",
                "    if bytes_of is not None and bytes_of != seen:\n"
                '        raise Kept("its ledgers map names other ledgers or bytes than were read '
                'in it")\n',
                "",
            ),
        ),
    ),
    TestedBug(
        "behind-the-end-of-a-journal",
        "on a full disk, a group is written behind the end of a closed journal file",
        """With no room for a new file the old one goes on in its margin. Not when the new one may
        have its name: a replay then finds a file without an end before another one, and calls it
        damage.""",
        "P40, P7",
        "unit/bookie/test_start_after_power_loss.py",
        (
            Edit(
                "octavo.bookie.journal.journal:JournalWriter.write",
                "            if self._next_has_its_name:\n"
                "                raise  # the END of the old file may be all that a replay looks "
                "for there\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "id-of-a-dropped-log",
        "a new entry log reuses the id of a dropped one",
        """A similar name: the newest log, not the newest there ever was. Until the journal is
        replayed the index may name records of the dropped one: other entries lie there now.""",
        "S4, P41",
        "unit/bookie/test_entry_log.py",
        (
            Edit(
                "octavo.bookie.entrylog.log:EntryLogs.roll",
                "log_id = self._last_id + 1",
                "log_id = self._current_id + 1",
            ),
        ),
    ),
    TestedBug(
        "log-older-than-the-mark",
        "after a lost disk, a new log gets an id below the mark",
        """All behind the mark is cut at the next start; by then it may be all that there is.""",
        "P38",
        "unit/bookie/test_entry_log.py",
        (
            Edit(
                "octavo.bookie.entrylog.log:EntryLogs.cut_abandoned",
                "        self._last_id = max(self._last_id, mark[0])\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "unsure-deletion-compacted",
        "a log is compacted away for a deletion that is not durable",
        """After a crash the ledger is there again, and its entries are not. The edit takes the one
        fate for the other.""",
        "P44, P38",
        "unit/bookie/test_compaction.py",
        (
            Edit(
                "octavo.bookie.gc.compaction:Compactor._of_live_ledgers",
                "        if fate is Fate.UNSURE:\n"
                '            raise Kept(f"ledger {ledger_id} is not surely deleted yet")\n',
                "",
            ),
        ),
    ),
    TestedBug(
        "folder-of-another-life",
        "a bookie starts with a folder from before an accepted loss",
        """It says the bookie's own name. What it holds is of before the loss that was accepted:
        too old to be served.""",
        "P42",
        "cluster/test_wiped_bookie.py",
        (
            Edit(
                "octavo.bookie.ledgers.cookies:check_cookies",
                "if cookie != recorded:",
                "if cookie.bookie_id != recorded.bookie_id:",
            ),
        ),
    ),
    TestedBug(
        "anybodys-folder-stamped",
        "a folder with data but without a cookie is taken over",
        """Nobody knows whose data it holds. The edit asks only at the second attempt.""",
        "P42",
        "unit/bookie/test_limbo.py",
        (
            Edit(
                "octavo.bookie.ledgers.cookies:lost_folders",
                "if folder in with_data:",
                "if folder in with_data and begun:",
            ),
        ),
    ),
    TestedBug(
        "ledgers-begin-by-a-fence",
        "fences of unknown ledgers are not bounded",
        """A fence is of a ledger that is being recovered, so there is a record of it: that is what
        those who keep to the rules do. Others fence what nobody made, and memory grows.""",
        "memory (unlisted_ledgers_max)",
        "cluster/test_squatted_ledgers.py",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl._authorized",
                "if not self.newcomers.may_begin(ledger_id):",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "listing-of-the-first-need",
        "a bookie believes its first listing of ledgers forever",
        """It is made when there is need of one, and then it is there. Ledgers made later begin
        nowhere any more where it matters.""",
        "S8",
        "cluster/test_squatted_ledgers.py",
        (
            Edit(
                "octavo.bookie.ledgers.newcomers:Newcomers._renew",
                "    self._listing = None\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "cut-before-the-journal-was-read",
        "a start cuts entry logs before it knows that the journal is readable",
        """A journal that is damaged ends the start, and the next one is told to accept the loss: of
        entries that the logs had, until the start that refused cut them.""",
        "what is not vouched for is kept",
        "unit/bookie/test_damage.py",
        (
            Edit(
                "octavo.bookie.startup.opening:open_files",
                "if not accept_loss and await",
                "if accept_loss and await",
            ),
        ),
    ),
)
