"""Rules for a change of a ledger's record that moves a copy to another bookie. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.ledger.rereplication.copies import stretches
from octavo.metadata.ledgers import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from tests.sim.ledger_audit import LedgerHistory


def missing_of(history: LedgerHistory, bookie: str, held: set[int]) -> set[int]:
    """Return the entries that a closed ledger's record assigns to a bookie and that it lacks."""
    last = history.record.last_entry
    wanted = (n for n in range(last + 1) if bookie in history.write_set(n))
    return set(wanted) - held


def is_move(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    if replace(new, fragments=old.fragments) != old or len(old.fragments) != len(new.fragments):
        return False
    pairs = list(zip(old.fragments, new.fragments, strict=True))
    changed = [n for n, (before, after) in enumerate(pairs) if before != after]
    settled = old.state is LedgerState.CLOSED or changed != [len(pairs) - 1]
    return settled and all(before.first_entry == after.first_entry for before, after in pairs)


def move_problems(
    history: LedgerHistory, new: LedgerMetadata, held: dict[str, dict[int, set[int]]]
) -> list[str]:
    old = history.record
    changes = [
        (stretch, position, bookie)
        for stretch, after in zip(stretches(old), new.fragments, strict=False)
        for position, bookie in enumerate(after.bookies)
        if bookie != stretch.fragment.bookies[position]
    ]
    changed = sum(one != other for one, other in zip(old.fragments, new.fragments, strict=True))
    if len(changes) != 1 or changed != 1:
        return [f"P54 {changed} fragments changed, of which {len(changes)} positions are settled"]
    ((stretch, position, bookie),) = changes
    if bookie in stretch.fragment.bookies:
        return [f"P53 {bookie} had a position already"]
    wanted = {
        entry_id
        for entry_id in range(stretch.first, stretch.last + 1)
        if history.quorum.holds(position, entry_id)
    }
    missing = sorted(wanted - held[bookie][history.ledger_id])
    return [f"P53 {bookie} takes over without entries {missing}"] if missing else []
