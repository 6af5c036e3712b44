"""Planted bugs of brokers' own compactions, and of delayed messages."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant
from tests.sim.mutants.tested import TestedBug

PROFILE = "topic"

MUTANTS = (
    Mutant(
        "view-trimmed-for-before-it-covers",
        0,
        "maintenance.py",
        "retention removes messages that no compacted view has yet",
        """Retention by size or time does not know about views. The edit does not tell it, so the
        only message of a rarely written key is removed.""",
        "X18 (nothing goes that is in no view)",
        "retention, a topic with compaction",
        (
            Edit(
                "octavo.broker.partition.maintenance:Maintenance.retention",
                "covered_to(self._record.value) if compacted else None",
                "None",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "older-message-kept-from-the-view",
        0,
        "compaction.py",
        "a compaction keeps the old view's message next to a newer one of its key",
        """The old view has each key once, so keeping its messages looks right. They must still be
        compared with the new messages.""",
        "X18 (none beside the newest)",
        "a second run",
        (
            Edit(
                "octavo.broker.log.compaction_rules:Choice.keeps",
                "return False",
                "return True",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "tombstones-go-at-once",
        0,
        "compaction.py",
        "a tombstone is removed too early: the delay is added instead of subtracted",
        """The delay lets occasional readers of the view see tombstones. The edit adds the delay
        where it must be subtracted.""",
        "X18 (tombstones only after the delay)",
        "tombstones, a long delay, a second run",
        (
            Edit(
                "octavo.broker.log.compaction_rules:Choice.__init__",
                "now_ms - tombstones_ms",
                "now_ms + tombstones_ms",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "full-map-is-passed-over",
        0,
        "compactor.py",
        "a compaction that ran out of room claims to cover the rest of the log",
        """A run that is out of room ends before the batch that did not fit, and its horizon must
        be there. The edit sets the horizon to the end of the closed ledgers.""",
        "X18 (the newest of each key)",
        "more keys than a run may know",
        (
            Edit(
                "octavo.broker.partition.compactor:Compactor._run",
                "horizon = max(end, before.horizon)",
                "horizon = max(dirt.end, before.horizon)",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "given-before-it-is-due",
        0,
        "subscription.py",
        "a batch is delivered when its first message is due, including messages that are not",
        """Each batch is examined once. The edit stops at the first message that is due, as if due
        times ascended.""",
        "X19 (none before it is due)",
        "delayed messages in batches, a shared subscription",
        (
            Edit(
                "octavo.broker.subscriptions.subscription:Subscription._without_early",
                "elif offset > last:",
                "else:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "not-due-and-forgotten",
        0,
        "dispatch.py",
        "messages skipped because they are not due are forgotten until a take-over",
        """Delayed messages later in the batch are skipped without a lease. The edit remembers only
        leased messages, so the others return only after the next take-over, if at all.""",
        "S9 (all of it is consumed)",
        "delayed messages in batches, receives of few",
        (
            Edit(
                "octavo.broker.subscriptions.dispatch:Dispatcher.withhold",
                "if not self.cursor.is_acked(offset):",
                "if not self.cursor.is_acked(offset) and offset in found.offsets:",
            ),
        ),
        PROFILE,
    ),
)

_TESTS = "cluster/test_compaction.py::"
BUGS = (
    TestedBug(
        "tombstone-goes-with-its-first-view",
        "an old tombstone is removed before any view contained it",
        """A tombstone with an old timestamp is removed by the first run that meets it. A reader of
        views alone never learns that the key was deleted.""",
        "X18 (a view told of each tombstone)",
        _TESTS + "test_tombstones_go_after_their_delay_and_one_view",
        (
            Edit(
                "octavo.broker.partition.compactor:Compactor._run",
                "await target.add(window)\n        made",
                "await target.add([one for one in window if one[1].value is not None or "
                "one[1].timestamp_ms > (choice._gone_before_ms or 0)])\n        made",
            ),
        ),
    ),
    TestedBug(
        "ledgers-of-a-lost-run-stay",
        "the ledgers of a compaction run that lost a race are never deleted",
        """A ledger of a compaction may be deleted once the record names another run. The edit waits
        for a record without any compaction.""",
        "P62",
        _TESTS + "test_a_run_that_is_broken_off_leaves_nothing",
        (
            Edit(
                "octavo.broker.log.orphan_ledgers:may_go",
                "record.compaction is None or record.compaction.run != label.run",
                "record.compaction is None",
            ),
        ),
    ),
)
