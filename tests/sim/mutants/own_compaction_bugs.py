"""Planted bugs of brokers' own compactions, and of messages that are not due: of no canon."""

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
        """Retention by size or time does not know of views. The edit forgets to tell it: of a key
        that is written rarely the only message goes.""",
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
        """Of the view before every key is once, so that it is kept looks right. It has to be looked
        up among the new ones all the same.""",
        "X18 (none beside the newest)",
        "a second run",
        (
            Edit(
                "octavo.broker.log.compaction:Choice.keeps",
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
        """The delay is for those who read the view now and then. The edit adds it where it is to be
        taken off.""",
        "X18 (tombstones only after the delay)",
        "tombstones, a long delay, a second run",
        (
            Edit(
                "octavo.broker.log.compaction:Choice.__init__",
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
        """It ends before the batch that it had no room for; its horizon has to stand there. The
        edit sets it where the closed ledgers end.""",
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
        """Batches are looked into once. The edit stops at the first message that is due, as if due
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
        """What follows in the batch and is not due is passed over without having been leased. The
        edit remembers only what was leased: the rest comes after the next take-over, if ever.""",
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

_TESTS = "cluster/test_compaction_by_itself.py::"
BUGS = (
    TestedBug(
        "tombstone-goes-with-its-first-view",
        "an old tombstone is removed before any view contained it",
        """Who reads the view alone never learns that the key is gone. The edit looks at its age
        alone: an old timestamp, or a topic whose first run comes late.""",
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
        """A ledger of a compaction may go once the record has another run than its own. The edit
        waits for a record without any compaction.""",
        "P62",
        _TESTS + "test_a_run_that_is_broken_off_leaves_nothing",
        (
            Edit(
                "octavo.broker.log.leftover:may_go",
                "record.compaction is None or record.compaction.run != label.run",
                "record.compaction is None",
            ),
        ),
    ),
)
