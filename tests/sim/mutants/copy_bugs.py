"""Planted bugs of re-replication, found by seeds whose bookies keep their copies."""

from __future__ import annotations

from tests.sim.mutants.planting import Edit, Mutant

PROFILE = "copies"

MUTANTS = (
    Mutant(
        "adopted-before-copied",
        0,
        "BookKeeper P52, P53",
        "the record names a new bookie before it has the entries",
        """A lost bookie is replaced in the ledger's record first and the entries are copied then.
        A crash between leaves a record that promises a copy which is not there, and nothing tells
        that it is missing. The edit takes over without having fetched.""",
        "P53 (the new holder has all that its position is to hold)",
        "a bookie that leaves for longer than a lost one is waited for",
        (
            Edit(
                "octavo.ledger.rereplication.keeper:CopyKeeper._adopt",
                " and await self._fetch(metadata, stretch, position):",
                ":",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "copy-counts-before-its-sync",
        0,
        "BookKeeper P52",
        "a copy counts when it is sent, not when it is durable",
        """The worker sends the entries and does not wait for the answers. Those that are refused or
        lost on the way are nowhere; the record names the bookie all the same. The edit returns
        once the adds are written to the socket.""",
        "P53, P42 (who vouches has all of it)",
        "crashes and refused adds while copies are fetched",
        (
            Edit(
                "octavo.ledger.rereplication.copying:Copying._write",
                "await answers.settled()",
                "break",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "vouched-without-a-fence",
        0,
        "BookKeeper BP-46, #4812",
        "a ledger leaves limbo without being fenced again",
        """A bookie that lost its disk has forgotten which ledgers it had fenced. Having fetched
        back a closed ledger it takes ordinary adds of it again: a second bookie that does so makes
        an ack quorum for an old writer, above the close. The edit does not fence.""",
        "P24 (a restored copy is fenced)",
        "a wiped bookie, its loss accepted",
        (
            Edit(
                "octavo.ledger.rereplication.keeper:CopyKeeper._look_after",
                "await self._own.fence(ledger_id, master_key(metadata.password))",
                "pass",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "vouched-though-incomplete",
        0,
        "BookKeeper BP-46",
        "a ledger leaves limbo although some entries could not be fetched",
        """What cannot be fetched now is passed over, and the ledger counts as whole: from then on
        this bookie says "no such entry" of entries that it held and lost. The edit vouches for
        every ledger that is closed.""",
        "P42 (who vouches for a ledger has all of it)",
        "a wiped bookie, while the other holders are away",
        (
            Edit(
                "octavo.ledger.rereplication.keeper:CopyKeeper._look_after",
                "if closed and whole:",
                "if closed:",
            ),
        ),
        PROFILE,
    ),
    Mutant(
        "limbo-ends-over-open-ledgers",
        0,
        "BookKeeper BP-46",
        "a bookie leaves limbo while an open ledger still names it",
        """Closed ledgers were fetched back, so the bookie is sure of everything again, also of an
        open ledger whose fence and entries it lost: its denials then count in a recovery. The edit
        does not look at open ledgers.""",
        "P42 (the limbo ends when all that names the bookie is whole)",
        "a wiped bookie in the ensemble of a ledger that stays open",
        (
            Edit(
                "octavo.ledger.rereplication.keeper:CopyKeeper.walk",
                "and not unsure and not open_in_limbo:",
                ":",
            ),
        ),
        PROFILE,
    ),
)
