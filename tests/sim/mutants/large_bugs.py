"""Planted bugs of large messages."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "large"
_FILE = "broker/partition/large.py"
_BODIES = "broker/operations/bodies.py"

MUTANTS = (
    Mutant(
        "pieces-are-messages",
        0,
        _FILE,
        "each piece of a large message counts as a message",
        """Each piece then has its own offset, and readers get it.""",
        "X23",
        "any upload",
        (
            Edit(
                "octavo.broker.partition.large:LargeUpload.finish",
                "contents.disorder_ms, body.pieces or None",
                "contents.disorder_ms, None",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "upload-sent-again-is-another",
        0,
        _FILE,
        "two concurrent uploads with the same name are both stored",
        """The same call may arrive again during the first; both checked the name when the message
        was not there. The edit checks only at the beginning.""",
        "X23",
        "uploads that are named, and answers that are lost",
        (
            Edit(
                "octavo.broker.partition.large:LargeUpload.finish",
                "if self._known_as and self._record.ledgers.uploaded(self._known_as):",
                "if False:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "upload-is-not-known-by-its-name",
        0,
        _FILE,
        "the record does not keep the upload's name, so a repeat is stored twice",
        """A sender that repeats the upload after a lost answer stores it twice.""",
        "X23",
        "uploads that are named, and answers that are lost",
        (
            Edit(
                "octavo.broker.partition.large:LargeUpload.finish",
                "upload=self._known_as",
                "upload=None",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "given-up-amid-its-insertion",
        0,
        _FILE,
        "an upload that is cancelled during its insertion deletes its ledger",
        """An insertion continues when its caller is gone. A dead letter that took too long was
        cancelled during it, and its ledger deleted although the record came to name it. This
        happened in Octavo once.""",
        "P46, X23",
        "copies that are given up when they take long",
        (
            Edit(
                "octavo.broker.partition.large:LargeUpload.finish",
                "except _REFUSALS:",
                "except (*_REFUSALS, asyncio.CancelledError):",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "broken-off-upload-is-stored",
        0,
        _BODIES,
        "an upload that is given up is stored with the pieces that came",
        """A broker that loses its client tells the owner to give the upload up. The owner takes
        that for the end of the body.""",
        "X23, S9",
        "uploads that break off at a broker that does not own the partition",
        (
            Edit(
                "octavo.broker.operations.bodies:_Body.end",
                "self.is_ending = pieces == self._next",
                "self.is_ending = True",
            ),
        ),
        PROFILE,
    ),
)
