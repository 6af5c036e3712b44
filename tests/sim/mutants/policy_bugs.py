"""Planted bugs of policies: messages that count as acked without an ack."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant
from tests.sim.mutants.tested import TestedBug

MUTANTS = (
    Mutant(
        "expired-as-soon-as-it-is-marked",
        0,
        "issue 19",
        "a time to live expires messages of any age",
        """The edit leaves the time span out of the comparison: the backlog of a consumer that is a
        moment behind counts as acked.""",
        "P64",
        "a time to live, a subscription that is behind",
        (
            Edit(
                "octavo.broker.partition.backlogs:Backlogs._expire",
                "self.ages.stored_before(time.now_ms - ttl_ms - 1)",
                "self.ages.stored_before(time.now_ms)",
            ),
        ),
        profile="topic",
    ),
    Mutant(
        "evicted-down-to-nothing",
        0,
        "issue 19",
        "a backlog over its quota is evicted completely",
        """A quota says how much may be kept. The edit evicts everything up to the end.""",
        "P65",
        "a backlog quota that evicts, a subscription that is behind",
        (
            Edit(
                "octavo.broker.partition.backlogs:Backlogs._evict",
                "room_from(quota.bytes, self._stored())",
                "self._stored()[-1].end",
            ),
        ),
        profile="topic",
    ),
    Mutant(
        "evicted-for-its-neighbour",
        0,
        "issue 19",
        "eviction measures one subscription and moves the cursor of another",
        """With two subscriptions, one of them slow, the other one's unread messages count as
        acked. The edit takes the first cursor.""",
        "S9 (nobody acked it, and its cursor stands behind it)",
        "a backlog quota that evicts, two subscriptions",
        (
            Edit(
                "octavo.broker.subscriptions.subscriptions:SubscriptionSet.pass_over",
                "held = self._cursors.get(name)",
                "held = next(iter(self._cursors.values()), None)",
            ),
        ),
        profile="topic",
    ),
    Mutant(
        "passed-over-in-memory-alone",
        0,
        "issue 19",
        "expired messages are marked as acked in memory only",
        """The owner skips expired messages in memory; the next owner delivers them all.""",
        "S9 (memory and state ledger say the same)",
        "a time to live or a quota, the end of a seed",
        (
            Edit(
                "octavo.broker.subscriptions.subscriptions:SubscriptionSet.pass_over",
                "await self._persist(ack_op(name, [(start, end)]))",
                "pass",
            ),
        ),
        profile="topic",
    ),
)

BUGS = (
    TestedBug(
        "between-two-marks-aged-by-the-earlier",
        "a message stored between two age marks gets the age of the earlier mark",
        """A message may have come just before the later of two marks, so its age must count from
        there.""",
        "P64",
        "unit/broker/test_retention.py",
        (
            Edit(
                "octavo.broker.policies:Ages.stored_before",
                "return self._marks[place - 1].offset if place else 0",
                "return self._marks[min(place, len(self._marks) - 1)].offset if place else 0",
            ),
        ),
    ),
    TestedBug(
        "dated-by-what-may-be-behind",
        "age marks use a clock that may be behind, so new messages look old",
        """The clock was behind when the mark was written. When it is right again, a message that
        came a second ago seems an hour old.""",
        "P64",
        "unit/broker/test_backlogs.py",
        (
            Edit(
                "octavo.broker.partition.backlogs:Backlogs._mark",
                "self.ages.note(end, time.date_ms)",
                "self.ages.note(end, time.now_ms)",
            ),
        ),
    ),
    TestedBug(
        "an-earlier-mark-takes-the-later-back",
        "replaying an older age mark discards newer marks",
        """A snapshot of a state ledger is ahead of operations that were queued before it. Such an
        operation must not take newer marks back.""",
        "P64",
        "unit/broker/test_retention.py",
        (
            Edit(
                "octavo.broker.policies:Ages.note",
                "if marks and offset <= marks[-1].offset:",
                "if False:",
            ),
        ),
    ),
    TestedBug(
        "who-comes-later-is-not-held",
        "a new publish overtakes publishes that wait for room in the backlog",
        """When a backlog has room again, waiting publishes are stored one by one. A new publish
        that looks at the quota alone is stored before them, and an idempotent producer gets a
        gap.""",
        "S9 (batches take effect in the order of the calls)",
        "unit/broker/test_backlogs.py",
        (
            Edit(
                "octavo.broker.partition.backlogs:Backlogs.admit",
                "if self._over is None and not self._held:",
                "if self._over is None:",
            ),
        ),
    ),
    TestedBug(
        "readable-before-it-is-synced",
        "adds that are written but not synced are shown to readers",
        """A consumer acks a message that a power failure then takes away, and its cursor stands
        behind the end of the log.""",
        "S9 (cursor ≤ end)",
        "cluster/test_policies.py",
        (
            Edit(
                "octavo.broker.partition.publisher:Publisher._added",
                "job.stored = not job.segment.writer.deferred",
                "job.stored = True",
            ),
        ),
    ),
)
