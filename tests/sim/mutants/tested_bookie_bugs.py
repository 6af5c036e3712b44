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
        """Both memtables limit how far a search is valid. The edit uses only the limit of the
        memtable that it searched last.""",
        "P7, S4",
        "unit/bookie/test_reads.py",
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
        """The index goes beyond that record, so it was synced: this is damage, and the good records
        behind it are this bookie's only copies.""",
        "P41, P45",
        "unit/bookie/test_mark.py",
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
        """A log gives back only its dead bytes, because live entries are copied. The edit counts
        all bytes.""",
        "S8 (a full disk)",
        "unit/bookie/test_collector.py",
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
        """An off-by-one that loses nothing: each reader at the end of a ledger asks again at once,
        for ever.""",
        "S6, load",
        "unit/bookie/test_reads.py",
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
        """The store has three answers: found, missing, unreadable. The edit takes the third for the
        second.""",
        "P44 (S1)",
        "unit/bookie/test_collector.py",
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
        """An `any` for an `all`: after a second loss and a crash between two folders, the old file
        in one folder ends the limbo.""",
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
        "Every pair of lengths is compared; the edit keeps the result of the last pair.",
        "P38, S4",
        "unit/bookie/test_journal.py",
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
        "An off-by-one: a reader gets the older copy.",
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
        """Runs above the last run that was put are taken for new and are not compared, so older
        copies stay next to newer copies.""",
        "P7, S4",
        "conformance/test_disk.py",
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
        "A mark with more entries and fewer fences counts as the later mark.",
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
        """When the deletion of a ledger is forgotten, the entries in the unread log return. The
        edit leaves out a line of an error path.""",
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
        "The deletion holds in memory only, and its log is never removed.",
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
        """The fence holds in memory, so the second condition looks redundant. A crash forgets the
        fence.""",
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
        """The scrubber clears earlier findings in the range that it has read. It must leave out the
        damage that it has just found.""",
        "P43",
        "unit/bookie/test_damage.py",
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
        """The next checkpoint flushes only the memtable that was left over. The mark must stop at
        its end, because later entries are in the other memtable and the journal.""",
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
        """The flush may have brought a newer copy of the entry, and has dropped the older copy from
        the cache. The edit puts the older copy back.""",
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
        """The read under way found its copy of the entry before the flush, which may have brought a
        newer copy.""",
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
        """With one journal this stops all. With more, the other journals still report adds as
        durable while the process must end.""",
        "P38",
        "unit/bookie/test_journal.py",
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
        """A new log begins with an empty map. With the old map garbage is not found, and a log
        whose map names too many ledgers is never removed.""",
        "space",
        "unit/bookie/test_entry_log.py",
        (Edit("octavo.bookie.entrylog.log:EntryLogs.roll", "    self._bytes_of = {}\n", ""),),
    ),
    TestedBug(
        "removed-whatever-its-map-says",
        "a log is deleted although its map names ledgers that were not found",
        """No record that was read is live, but the map names a ledger that was not found: a record
        was skipped.""",
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
        """Without room for a new file, the old file continues in its reserve. If the new file may
        exist already, a replay finds a file without an end before another file, and calls it
        damage.""",
        "P40, P7",
        "unit/bookie/test_start.py",
        (
            Edit(
                "octavo.bookie.journal.journal:JournalWriter.write",
                "            if self._next_has_its_name:\n"
                "                raise  # a replay would need the old "
                "file's END block\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "id-of-a-dropped-log",
        "a new entry log reuses the id of a dropped one",
        """A similar name: the newest existing log, not the newest that ever existed. Until the
        journal is replayed, the index may name records of the dropped log, where other entries lie
        now.""",
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
        "The next start cuts everything behind the mark, which may then be the only copy.",
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
        "After a crash the ledger exists again, and its entries are gone.",
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
        "The folder names this bookie, but its data is older than the accepted loss.",
        "P42",
        "cluster/test_copies.py",
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
        "The data may belong to another bookie. The edit checks this only at the second start.",
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
        """Honest clients fence only ledgers that exist. Other clients fence ids that no client
        made, and memory grows.""",
        "memory (unlisted_ledgers_max)",
        "cluster/test_secured_ledgers.py",
        (
            Edit(
                "octavo.bookie.ledgers.control:LedgerControl._authorized",
                "if not self.ledger_admission.may_begin(ledger_id):",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "listing-of-the-first-need",
        "a bookie believes its first listing of ledgers forever",
        """The listing is made when it is first needed. If it is never renewed, the bookie does not
        know any ledger that was made later.""",
        "S8",
        "cluster/test_secured_ledgers.py",
        (
            Edit(
                "octavo.bookie.ledgers.ledger_admission:LedgerAdmission._renew",
                "    self._listing = None\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "cut-before-the-journal-was-read",
        "a start cuts entry logs before it knows that the journal is readable",
        """A damaged journal ends the start, and the operator accepts the loss. By then the logs
        have lost entries that they had before.""",
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
