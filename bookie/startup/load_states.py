"""What a start reads first: the journal mark, and what it vouches for of each ledger's state."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.bookie.disk.damage import DamageKind
from octavo.bookie.disk.files import Disk
from octavo.bookie.disk.loss import Loss
from octavo.bookie.journal.mark import Mark, read_mark
from octavo.bookie.ledgers.state import LedgerStateDamaged, LedgerStates, StateFile
from octavo.bookie.startup.salvage import salvaged_states


def load_states(
    disk: Disk,
    directories: Sequence[str],
    states: LedgerStates,
    losses: list[Loss] | None = None,
) -> tuple[Mark | None, StateFile]:
    """Read the mark and fill `states`.

    Raises `LedgerStateDamaged`, unless losses are accepted: then what is lost is added to `losses`.
    """
    mark = read_mark(disk, directories)
    state_file = StateFile(disk, directories[0])
    position = None if mark is None else (mark.state_id, mark.state_offset)
    try:
        for ledger_id, state in state_file.load(position):
            states.restore(ledger_id, state)
    except LedgerStateDamaged as error:
        if losses is None:
            raise
        for ledger_id, state in salvaged_states(disk, directories[0]):
            states.restore(ledger_id, state)
        losses.append(Loss(DamageKind.STATE, directories[0], 0, 0, str(error)))
    return mark, state_file
