"""Planted bugs of compacted reads, outside the canon: mistakes that a reviewer may overlook."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "topic"

MUTANTS = (
    Mutant(
        "log-before-the-view-ends",
        0,
        "compacted.py",
        "a page continues in the log before the end of the compacted view",
        """That the page has come to the horizon looks redundant where room is left: a page ends
        when it is full. It also ends after so many ledgers, and where entries are uneven.""",
        "X9 (a page has all of the view)",
        "views of many small ledgers, or uneven entries",
        (
            Edit(
                "octavo.broker.partition.compacted:CompactedLog.read",
                "if start == horizon and room.is_left:",
                "if room.is_left:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "hint-past-the-last",
        0,
        "compaction.py",
        "a hint into a compacted view points an entry too far",
        """Where a page ended, the next entry is where its reader goes on. The edit lets the hint
        begin where that entry's predecessor does: a similar name.""",
        "X9 (a page has all of the view)",
        "readers that begin amid an entry where another one's page ended",
        (
            Edit(
                "octavo.broker.log.compaction_rules:Hints.note",
                "self._put(batch.ledger_id, batch.entry_id + 1, following, following + 1)",
                "self._put(batch.ledger_id, batch.entry_id + 1, batch.base_offset, following + 1)",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "view-of-the-first-look",
        0,
        "compacted.py",
        "an owner keeps using the first compacted view that it saw",
        """The view is put together when the record's is another one. The edit does it when there is
        none: readers stay in a view whose ledgers go, below a horizon that has moved.""",
        "X9",
        "a second view while the owner stays",
        (
            Edit(
                "octavo.broker.partition.compacted:CompactedReader.now",
                "if known is not self._known:",
                "if self._known is None:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "time-sought-below-the-horizon",
        0,
        "compacted.py",
        "a search by time looks into log entries that the compacted view replaces",
        """Retention often leaves nothing below the horizon, and then it is the same. Where it does
        leave something, the answer may be a message that the view leaves out.""",
        "P61 (of compacted reads)",
        "timestamps out of order, a log that goes back behind the horizon",
        (
            Edit(
                "octavo.broker.partition.compacted:CompactedLog._offset_at",
                "self._log.offset_at(time_ms, horizon)",
                "self._log.offset_at(time_ms)",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "owner-takes-a-view-back",
        0,
        "offloads.py",
        "an owner that retries its write removes a newly published view",
        """Both change the record. Where closed ledgers lie is kept; the view was added later, and
        the edit forgets it. Its ledgers are retired by no record, and readers that know the view
        find it gone.""",
        "X9 (a view is never taken back)",
        "a roll-over or a trim while a view is published",
        (
            Edit(
                "octavo.metadata.offloads:with_jobs_part_of",
                ", compaction=newer.compaction)",
                ")",
            ),
        ),
        PROFILE,
    ),
)
