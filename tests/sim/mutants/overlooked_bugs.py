"""Planted bugs of no canon, found by seeds: what a reviewer may overlook, where it is decided."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

MUTANTS = (
    Mutant(
        "growing-reader-taken-for-closed",
        0,
        "log_reader.py",
        "a reader that was opened while its ledger grew is taken for one of the closed ledger",
        """Its end is where the ledger ended then. The edit asks whether it has entries and not
        whether it is closed: the last entries of a ledger are not there.""",
        "S9",
        "a roll-over while somebody reads",
        (
            Edit(
                "broker.log_reader:LogReader._closed_reader",
                "if reader.is_closed:",
                "if reader.last_add_confirmed >= 0:",
            ),
        ),
        "topic",
    ),
    Mutant(
        "duplicate-answered-before-it-is-durable",
        0,
        "publisher.py",
        "a repeat is answered before what it repeats is durable",
        """An off-by-one: the answer waits for all before the message and not for the message. Its
        sender is told an offset that a take-over may give to another message.""",
        "S9, S1",
        "repeats while the first attempt is under way",
        (
            Edit(
                "broker.publisher:Publisher.publish",
                "await self.confirmed_up_to(job.first_offset + 1)",
                "await self.confirmed_up_to(job.first_offset)",
            ),
        ),
        "topic",
    ),
)
