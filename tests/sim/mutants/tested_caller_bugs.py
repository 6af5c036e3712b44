"""Planted bugs in what a caller may do to what is another's; a test has to find them."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

_RECOVER = "issues/test_recover_in_a_loop_stops_a_topic.py"

BUGS = (
    TestedBug(
        "state-ledger-is-no-ones",
        "only the messages' ledger of a partition counts as in use",
        """The state ledger is written by the owner as well: fenced, it ends acks and the
        producers' table, and the partition has to be opened anew. That a partition's record names
        it apart is easily overlooked.""",
        "a topic is not stopped from outside",
        _RECOVER,
        (
            Edit(
                "broker.leftover:named_ledgers",
                "return named if record.state_ledger is None else named | {record.state_ledger}",
                "return named",
            ),
        ),
    ),
    TestedBug(
        "ledger-not-yet-named-is-no-ones",
        "a ledger that its maker has not named yet may be recovered by anybody",
        """Between making a ledger and naming it there is a write of metadata. Recovered in
        between, it is named closed, and the first add is fenced.""",
        "a topic is not stopped from outside",
        _RECOVER,
        (
            Edit(
                "broker.in_use:writes",
                "label.epoch >= record.epoch",
                "label.epoch > record.epoch",
            ),
        ),
    ),
    TestedBug(
        "forced-recovery-without-end",
        "forced recoveries are not counted",
        """Whoever forces it in a loop stops the topic as before. That a recovery waits its turn
        at the door looks like limit enough.""",
        "a topic is not stopped from outside",
        _RECOVER,
        (
            Edit(
                "broker.in_use:RecoveryDoor.force",
                "self._forced_s = now_s",
                "pass",
            ),
        ),
    ),
)
