"""Planted bugs of deferred syncs: the durability of a force, and of an ack without one."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant
from tests.sim.mutants.tested import TestedBug

MUTANTS = (
    Mutant(
        "confirmed-without-a-force",
        0,
        "writer_state.py (acked)",
        "the LAC advances with adds that are acked but not yet synced",
        """A power failure may destroy all copies of entries that an ack quorum has only written.
        The edit counts acks as if they were forces, so readers see entries that may vanish.""",
        "P15, P21 (S1, S6)",
        "any ledger with deferred syncs",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState.acked",
                "    self.received.add(position, first, last)\n",
                "    self.received.add(position, first, last)\n"
                "    self.acks.add(position, first, last)\n",
            ),
        ),
    ),
)

BUGS = (
    TestedBug(
        "force-before-the-sync",
        "a force is answered before the deferred adds are on disk",
        """The adds were acked as written, and the force promises that they are durable; the writer
        then shows them to readers. Power fails before another add syncs the journal.""",
        "P38, P21 (S1)",
        "unit/bookie/test_storage.py::test_a_force_waits_for_the_sync",
        (Edit("octavo.bookie.storage:Storage.force", "    await journal.synced()\n", ""),),
    ),
    TestedBug(
        "acks-outlive-their-bookie",
        "a force is believed from a bookie that restarted after it acked",
        """A restarted bookie knows of no open force and answers yes, but it has lost the entries
        that it had acked and not synced. Apache's client also asks any bookie that is up.""",
        "P15, P21 (S1)",
        "unit/ledger/test_writer_state.py",
        (
            Edit(
                "octavo.ledger.write.writer_state:WriterState._forget_written",
                "    if self.deferred:\n",
                "    if self.deferred and False:\n",
            ),
        ),
    ),
)
