"""Planted bugs of leases that an owner leaves to its successor, and of messages that wait.

As in tested_broker_bugs.py, they are outside the canon, and a test has to find them.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

_LEASES = "unit/broker/test_state_log.py"
_RUNS = "unit/broker/test_subscriptions.py::test_runs_of_any_length_give_the_same"
_FLOOR = (
    "unit/broker/test_subscriptions.py::"
    "test_the_first_unacked_message_stays_also_as_the_last_of_its_run"
)

BUGS = (
    TestedBug(
        "left-before-it-was-given",
        "an owner hands on leases of messages that no consumer has received",
        """A message was still on its way from the bookies when the owner ended. If its lease is
        handed on, no consumer can ack it until the lease ends.""",
        "decision 72 (what no consumer got is handed out)",
        _LEASES,
        (
            Edit(
                "octavo.broker.subscriptions.dispatch:Dispatcher.leave",
                "if lease.given:",
                "if lease.number:",
            ),
        ),
    ),
    TestedBug(
        "counts-end-with-the-owner",
        "delivery counts are not handed on",
        """The lease and the ack id stay valid, but a poison message counts from zero after each
        drain, and never becomes a dead letter.""",
        "decision 72 (delivery counts go on)",
        _LEASES,
        (
            Edit(
                "octavo.broker.subscriptions.dispatch:Dispatcher._resume",
                "        if attempts:\n            self._attempts[offset] = attempts\n",
                "",
            ),
        ),
    ),
    TestedBug(
        "delays-stand-still",
        "delays stop while no consumer uses the subscription",
        """Leased and waiting messages are two kinds in one table, and time passes for both. The
        edit leaves one kind out.""",
        "decision 72 (delays go on)",
        _LEASES,
        (
            Edit(
                "octavo.broker.state.leases:LeftLeases.later",
                "if one.kind in (OUT, ASLEEP)",
                "if one.kind == OUT",
            ),
        ),
    ),
    TestedBug(
        "second-part-with-counts-of-the-first",
        "in a table of over 10,000 messages, counts are assigned to the wrong messages",
        """A long table is written as several operations. The edit cuts offsets and counts
        differently; both have the right length, so no reader refuses them.""",
        "decision 72 (delivery counts go on)",
        _LEASES,
        (
            Edit(
                "octavo.broker.state.leases:LeftMessages.parts",
                "attempts=self.attempts[at:end],",
                "attempts=self.attempts[: len(self.offsets[at:end])],",
            ),
        ),
    ),
    TestedBug(
        "floor-swept-along",
        "dropping acked messages also drops the first unacked one",
        """An off-by-one: messages before the floor are acked, the floor is not. That message is
        never delivered until another broker takes the partition over.""",
        "what is due is handed out",
        _FLOOR,
        (
            Edit(
                "octavo.broker.subscriptions.delays:Delays._sweep",
                "if run.highest < self._passed:",
                "if run.highest <= self._passed:",
            ),
        ),
    ),
    TestedBug(
        "taken-ones-come-again",
        "breaking up a run returns messages that were already taken from it",
        """Messages are taken from a run by moving an index, and cut off later. Code that reads the
        array from its start delivers them a second time.""",
        "a message is out under one lease",
        _RUNS,
        (
            Edit(
                "octavo.broker.subscriptions.delays:_Run.left",
                "for at in range(self.at, len(self.words))",
                "for at in range(len(self.words))",
            ),
        ),
    ),
    TestedBug(
        "former-heads-are-believed",
        "the heap of delayed runs uses entries that are out of date",
        """The heap keeps outdated entries, which must be skipped when they come up. The edit checks
        only that the run still exists.""",
        "nothing is handed out before it is due, nor twice",
        _RUNS,
        (
            Edit(
                "octavo.broker.subscriptions.delays:Delays._first",
                "if run is not None and run.head == head:",
                "if run is not None:",
            ),
        ),
    ),
)
