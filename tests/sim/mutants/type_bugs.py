"""Planted bugs of the types of subscriptions: the order of keys, the active consumer, filters."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant
from tests.sim.mutants.tested import TestedBug

_KEYS = "octavo.broker.subscriptions.key_shared:KeyOrder"

MUTANTS = (
    Mutant(
        "key-at-two-consumers",
        0,
        "Pulsar's Key_Shared (class)",
        "a second consumer gets messages of a key that the first still holds",
        """When consumers came and left, Pulsar's Key_Shared delivered messages of a key to a
        second consumer while the first still had unacked ones. The edit checks the owner of the
        key's slot, but not the leased messages.""",
        "S13 (of a key all that is out is one answer's)",
        "key-shared consumers that come, die and are slow to ack",
        (
            Edit(
                f"{_KEYS}._may_have",
                "return None if key.out else self._slots.owner(slot_of(key.hash))",
                "return self._slots.owner(slot_of(key.hash))",
            ),
        ),
        "topic",
    ),
    Mutant(
        "new-ones-overtake-what-is-not-remembered",
        0,
        "Pulsar's Key_Shared (class)",
        "new messages of a key overtake older messages that did not fit into memory",
        """Later messages overtook messages that did not fit into memory. The edit takes any
        message beyond the front for the key's next message.""",
        "S13 (what is out of a key is its beginning)",
        "a key-shared consumer that is slower than the producers of its keys",
        (
            Edit(
                f"{_KEYS}._is_next",
                "if key is None or key.more_from is None:",
                "if key is None or key.more_from is None or offset >= self.front:",
            ),
        ),
        "topic",
    ),
    Mutant(
        "one-slow-key-stops-all",
        0,
        "Pulsar's Key_Shared (class)",
        "a key with a long backlog stops the look-ahead for all keys",
        """Pulsar bounded its look-ahead in messages: a slow consumer filled it, and no consumer
        got anything. The edit stops the look-ahead while some key has more messages than are
        remembered.""",
        "S13 (no key waits for another one)",
        "a consumer that holds one message and stands still, while others ask",
        (
            Edit(
                f"{_KEYS}.wanted",
                "if self.front >= end or (self.is_full and self.front >= self._resumed_end):",
                "if self.front >= end or self.is_full or self._spilled:",
            ),
        ),
        "topic",
    ),
    Mutant(
        "what-waits-is-overtaken",
        0,
        "Octavo (test_heir_acks_what_waits_for_its_delay)",
        "later messages overtake a message that waits for redelivery",
        """Messages of a dead consumer waited for their backoff; the next consumer got later ones,
        and its cumulative ack covered messages that it had never seen. The edit ignores
        delays.""",
        "S13 (nothing overtakes what waits)",
        "failover and exclusive consumers that give back with a delay",
        (
            Edit(
                "octavo.broker.subscriptions.dispatch:Dispatcher._first_asleep",
                "if not self._in_order:",
                "if self._in_order or not self._in_order:",
            ),
        ),
        "topic",
    ),
    Mutant(
        "next-one-does-not-wait",
        0,
        "Pulsar's Failover (class)",
        "a failover consumer starts while the previous one still holds messages",
        """The new active consumer got messages behind those of the previous consumer, and then
        these again. The edit ignores the previous consumer's leases.""",
        "S13 (all that is out is at one consumer)",
        "failover consumers that die and come",
        (
            Edit(
                "octavo.broker.subscriptions.consumer_selection:ConsumerSelection._elect",
                "elif self.active is None or self.active.leased == 0:",
                "elif self.active is None or self.active.leased >= 0:",
            ),
        ),
        "topic",
    ),
    Mutant(
        "filter-believes-it-has-looked",
        0,
        "class",
        "a short read counts as complete, so unread messages skip the filter",
        """A read may return fewer messages than requested. The edit takes the whole range as
        checked, so the rest is delivered unfiltered.""",
        "S13 (what a filter refuses is given to nobody)",
        "filters, and batches that are read one by one",
        (
            Edit(
                "octavo.broker.subscriptions.key_lookahead:KeyLookAhead.learn",
                "self._front = max(self._front, seen.stop)",
                "self._front = max(self._front, look.stop)",
            ),
        ),
        "topic",
    ),
)

BUGS = (
    TestedBug(
        "later-ones-stay-out",
        "a message is returned without the later messages of its key, which may be acked first",
        """The later messages belong to the same key, and may be acked before the earlier one is
        delivered again.""",
        "S13 (what is out of a key is its beginning)",
        "unit/broker/test_keys.py",
        (
            Edit(
                f"{_KEYS}.back",
                "later = sorted(one for one in key.out if one > offset)",
                "later: list[int] = []",
            ),
        ),
    ),
)
