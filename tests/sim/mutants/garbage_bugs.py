"""Planted bugs of garbage collection: data is thrown away too early, or on too little evidence."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "bad-header-means-an-empty-log",
        10,
        "BookKeeper #4607",
        "garbage collection takes a log with a damaged header for empty, and deletes it",
        """A log with an unreadable header counted as a log without ledgers. So nothing in it was
        live, and it was deleted.""",
        "P45, P44 (S1)",
        "bit rot or a read error in the first bytes of an entry log",
        (
            Edit(
                "octavo.bookie.gc.log_metadata:EntryLogMetadata._sums",
                "bytes_of = self._logs.ledgers_of(log_id)",
                "from octavo.bookie.entrylog.format import FILE_HEADER_BYTES, decode_file_header\n"
                "    try:\n"
                "        header = self._logs.read_bytes(log_id, 0, FILE_HEADER_BYTES)\n"
                "        good = decode_file_header(header) == log_id\n"
                "        bytes_of = self._logs.ledgers_of(log_id) if good else {}\n"
                "    except BookieIOError:\n"
                "        bytes_of = {}",
            ),
            Edit(
                "octavo.bookie.index.log_slice:log_end",
                "header = logs.read_bytes(log_id, 0, FILE_HEADER_BYTES)\n",
                "try:\n"
                "        header = logs.read_bytes(log_id, 0, FILE_HEADER_BYTES)\n"
                "    except DamagedRead:\n"
                "        header = b''\n"
                "    if decode_file_header(header) != log_id:\n"
                "        return LogEnd(FILE_HEADER_BYTES, None)\n",
            ),
        ),
    ),
    Mutant(
        "one-incomplete-listing-believed",
        11,
        "BookKeeper #870, YBK-183",
        "garbage collection believes one incomplete listing and deletes live ledgers",
        """The iterator over ledgers left some out when a request failed, and the bookie deleted
        those.""",
        "P44 (S1)",
        "a metadata store that does not answer for a while",
        (
            Edit(
                "octavo.metadata.ledgers:LedgerStore.list",
                "            return await self._store.children(path)",
                "            try:\n"
                "                return await self._store.children(path)\n"
                "            except MetadataError:\n"
                "                return []",
            ),
            Edit(
                "octavo.bookie.gc.deletion_proof:DeletionProof.prove",
                "answers = await gather_all([is_gone(found) for found in asked])",
                "answers = [True for _ in asked]",
            ),
            Edit(
                "octavo.bookie.gc.rules:Quarantine.round",
                "    return Verdict(entered, released, confirmed)",
                "    return Verdict([], released, list(gone))",
            ),
        ),
    ),
    Mutant(
        "log-unlinked-before-the-index-flush",
        0,
        "BookKeeper #1534, #1536",
        "compaction deletes the old log before the index of the copies is on disk",
        """The index was flushed some time after the old log was deleted. A crash in between left
        an index that pointed nowhere. The edit leaves the flush to the next checkpoint.""",
        "P45",
        "any compaction",
        (
            Edit(
                "octavo.bookie.write.checkpoint:Checkpointer._unlink",
                "        self._index.flush()\n",
                "        pass\n",
            ),
        ),
    ),
    Mutant(
        "copies-behind-the-mark",
        0,
        "P45",
        "compaction moves the mark only in memory, so a restart cuts the copies",
        """A start cuts the logs where the mark ends. Copies behind the mark are then gone, and so
        is the log from which they came. The edit moves the mark in memory only.""",
        "P38, P45 (S1)",
        "a crash between a compaction and the next checkpoint",
        (
            Edit(
                "octavo.bookie.write.checkpoint:Checkpointer.relocate",
                "await self._move_mark(replace(self.mark,",
                "self.mark = (replace(self.mark,",
            ),
        ),
    ),
)
