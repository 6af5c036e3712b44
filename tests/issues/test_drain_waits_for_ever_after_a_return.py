"""`drain` waited for ever when the last acks were given while the writer was stalled.

What two bookies had stored was confirmed at the moment when one that was down came back: nothing
was owed any more, and nobody let go of what was held, for that was done only when an add was
answered. Found by the simulation, seed 1363: E 3, Qw 2, Qa 2, no spare, tiny bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.ensemble_writer import EnsembleWriter, WriterEvent
from octavo.ledger.write.writer_state import State
from tests.support.ledger_world import new_ledger


class _Owner:
    def __init__(self) -> None:
        self.last_confirmed = -1
        self.held_bytes: Callable[[], int] = lambda: -1
        self.held_when_released = -1

    def confirmed(self, last_entry: int) -> None:
        self.last_confirmed = last_entry

    def written(self, last_entry: int) -> None: ...

    def released(self) -> None:
        self.held_when_released = self.held_bytes()

    def tell(self, event: WriterEvent) -> None: ...


def _bookie(bookie_id: str) -> Any:
    """One without a connection."""

    def nothing(_: object) -> None: ...

    return SimpleNamespace(
        bookie_id=bookie_id, connection=None, is_up=True, listen=nothing, unlisten=nothing
    )


def _client() -> Any:
    """One with three bookies and no spare."""
    bookies = {name: _bookie(name) for name in "abc"}
    return SimpleNamespace(
        options=LedgerOptions(),
        bookies=SimpleNamespace(
            get=lambda name, _class: bookies[name],
            suspect=lambda _name: None,
            probe=lambda: None,
            on_change=lambda _listener: lambda: None,
        ),
        replacements=lambda _wish, _metadata: {},
        keep_ticking=lambda _ensemble_writer: None,
        stop_ticking=lambda _ensemble_writer: None,
    )


@pytest.mark.parametrize("found_by", ["connection", "retry"])
async def test_what_a_return_confirms_is_let_go(found_by: str) -> None:
    owner = _Owner()
    replication = EnsembleWriter(_client(), new_ledger(3, 2, 2), 0, owner)
    owner.held_bytes = lambda: replication.pending.held_bytes
    replication.push([b"x" * 100])
    assert replication.pending.held_bytes
    replication.bookie_down("c", BookieUnavailable("c", "gone"))
    assert replication.core.state is State.STALLED
    replication.added("a", 0, 0)
    replication.added("b", 0, 0)
    assert owner.last_confirmed == -1, "P14: the change is unresolved"
    if found_by == "connection":
        replication.bookie_up("c")
    else:
        replication._retry_failed()
    replication.stop()
    assert owner.last_confirmed == 0
    assert owner.held_when_released == 0


async def test_nothing_is_held_for_a_bookie_that_is_down() -> None:
    """What it misses it is sent no more: it counts anew from where it comes back."""
    owner = _Owner()
    replication = EnsembleWriter(_client(), new_ledger(3, 3, 2), 0, owner)
    replication.bookie_down("c", BookieUnavailable("c", "gone"))
    for entry_id in range(3):
        replication.push([b"x" * 100])
        replication.added("a", entry_id, entry_id)
        assert replication.pending.held_bytes
        replication.added("b", entry_id, entry_id)
        assert owner.last_confirmed == entry_id
        assert replication.pending.held_bytes == 0
    replication.stop()
