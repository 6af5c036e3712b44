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
        """The record replaces the lost bookie before the entries are copied. After a crash in
        between, the record promises a copy that does not exist, and no check reports it. The
        edit adopts without fetching.""",
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
        """The worker sends the entries without waiting for the answers. Refused or lost entries
        are not stored, but the record names the bookie. The edit returns once the adds are in
        the socket.""",
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
        """A bookie that lost its disk forgot which ledgers it had fenced. After fetching a closed
        ledger it accepts ordinary adds again, and with a second such bookie an old writer gets
        an ack quorum above the close. The edit does not fence.""",
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
        """Entries that cannot be fetched are skipped, and the ledger counts as complete: the
        bookie answers "no such entry" for entries that it lost. The edit accepts every closed
        ledger.""",
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
        """The closed ledgers were fetched back, so the bookie answers with certainty again, also
        for an open ledger whose fence and entries it lost; recoveries count its denials. The
        edit ignores open ledgers.""",
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
