"""Read mark and ledger states at a start, and repair them after data loss. Blocking.

When the loss is accepted, everything good is kept and served: blocks and states after a damaged
one, entries whose ledger has no state. The bookie enters limbo before anything is written, so it
still answers truthfully.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.bookie.disk.damage import DamageKind, Loss
from octavo.bookie.disk.files import Disk
from octavo.bookie.entrylog.format import RECORD_BYTES
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.journal.mark import Mark, read_mark
from octavo.bookie.ledgers.state import (
    LedgerState,
    LedgerStateDamaged,
    LedgerStates,
    StateFile,
    good_blocks,
    state_files,
)
from octavo.protocol.codes import BookieIOError
from octavo.protocol.frames import ADD_IDS


def load_states(
    disk: Disk,
    directories: Sequence[str],
    states: LedgerStates,
    losses: list[Loss] | None = None,
) -> tuple[Mark | None, StateFile]:
    """Load the mark and the ledgers' states. Raises `LedgerStateDamaged`.

    If losses are accepted, add the damage to `losses` instead.
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
        for ledger_id, state in repaired_states(disk, directories[0]):
            states.restore(ledger_id, state)
        losses.append(Loss(DamageKind.STATE, directories[0], 0, 0, str(error)))
    return mark, state_file


def repaired_states(disk: Disk, directory: str) -> Iterator[tuple[int, LedgerState]]:
    """Yield every good record of every state file, oldest first; later records win.

    A ledger stays fenced or deleted if any record says so.
    """
    latest: dict[int, LedgerState] = {}
    for file_id in state_files(disk, directory):
        for ledger_id, state in good_blocks(disk, directory, file_id):
            before = latest.get(ledger_id)
            if before is not None and before.deleted:
                continue
            state.fenced = state.fenced or (before is not None and before.fenced)
            latest[ledger_id] = state
    yield from latest.items()


def restore_states(logs: EntryLogs, states: LedgerStates, start: tuple[int, int]) -> int:
    """Restore ledgers and last entries from the logs; return how many are new.

    A frame carries the ledger's key. The logs do not know fences and LACs; a bookie in limbo
    answers both as unknown.
    """
    made = 0
    for log_id in logs.log_ids:
        if log_id < start[0]:
            continue
        try:
            for record, at in logs.scan(log_id, start[1] if log_id == start[0] else 0):
                state = states.get(record.ledger_id)
                if state is None:
                    front = logs.read_bytes(log_id, at.offset + RECORD_BYTES, ADD_IDS.size)
                    if len(front) < ADD_IDS.size:
                        break
                    state = states.create(record.ledger_id, ADD_IDS.unpack(front)[2])
                    made += 1
                if not state.deleted and record.last_entry > state.last_entry:
                    state.last_entry = record.last_entry
                    states.touch(record.ledger_id)
        except BookieIOError:
            continue  # the record's entries stay unknown; a read of them reports damage
    return made
