"""Planted bugs of large messages."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "large"
_FILE = "broker/partition/large.py"

MUTANTS = (
    Mutant(
        "pieces-are-messages",
        0,
        _FILE,
        "the record does not say that a large message has pieces",
        """Each piece is a message then, with an offset of its own, and readers are given it.""",
        "X23",
        "any upload",
        (
            Edit(
                "octavo.broker.partition.large:LargeUpload.finish",
                "pieces=body.pieces or None",
                "pieces=None",
            ),
        ),
        PROFILE,
    ),
)
