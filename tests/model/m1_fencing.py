"""M1: a writer, and a recoverer that takes the ledger from it. E = Qw = 3, Qa = 2, one entry."""

from __future__ import annotations

from unittest.mock import patch

from octavo.bookie.adds import AddBatch
from octavo.bookie.ledgers import rules as ledger_rules
from octavo.bookie.ledgers.state import LedgerState
from octavo.ledger.quorum import Quorum
from octavo.ledger.recover import recovery
from octavo.protocol.codes import Code
from octavo.protocol.frames import Flag
from tests.model.ledger_worlds import ledger_world
from tests.model.model import Defect, Model


def admit_although_fenced(state: LedgerState | None, run: AddBatch, *, read_only: bool) -> Code:
    return Code.OK


MODEL = Model(
    name="M1",
    about="fencing and recovery: one writer, one recoverer; the writer may close as well",
    bounds="E = Qw = 3, Qa = 2; 1 entry; any delay, order and loss of messages",
    world=lambda: ledger_world((3, 3, 2), "abc", closes=True, alike=["abc"]),
    states=106_512,
    depth=27,
    ci=True,
    defects=(
        Defect(
            "recovery reads do not fence (BookKeeper #2614)",
            "S3: entry 0 was acked",
            depth=16,
            plant=lambda: patch.object(recovery, "_READ_FLAGS", Flag.HIGH_PRIORITY),
        ),
        Defect(
            "one answer is enough, for a fence and for the end",
            "S5: r0 reads on",
            depth=4,
            plant=lambda: patch.object(Quorum, "denials", 1),
        ),
        Defect(
            "a fenced bookie takes the old writer's adds",
            "S3: entry 0 was acked",
            depth=16,
            plant=lambda: patch.object(ledger_rules, "admission", admit_although_fenced),
        ),
    ),
)
