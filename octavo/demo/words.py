"""Log events in words: which ones a demonstration shows, and what each one means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.demo.following import LogEvent

Fields = Mapping[str, Any]


def _ensemble_changed(found: Fields) -> str:
    return (
        f"ledger {found.get('ledger')}: ensemble changed from entry {found.get('first_entry')} on: "
        f"{_names(found.get('old'))} -> {_names(found.get('new'))}"
    )


def _ensemble_change_delayed(found: Fields) -> str:
    return (
        f"ledger {found.get('ledger')}: {_names(found.get('failed'))} failed and no spare bookie "
        "is up; goes on with the ack quorum"
    )


def _partition_taken_over(found: Fields) -> str:
    return f"took over partition {found.get('partition')} ({_rest(found, 'partition')})"


def _ledger_recovered(found: Fields) -> str:
    return f"recovered ledger {found.get('ledger', found.get('ledger_id'))} ({_rest(found)})"


def _ledger_fenced(found: Fields) -> str:
    return f"ledger {found.get('ledger', found.get('ledger_id'))} is fenced ({_rest(found)})"


def _bookie_lost(found: Fields) -> str:
    return f"lost {found.get('bookie')}: {found.get('reason')}"


_WORDS: dict[str, tuple[str, Callable[[Fields], str]]] = {
    "ensemble_changed": ("magenta", _ensemble_changed),
    "ensemble_change_delayed": ("yellow", _ensemble_change_delayed),
    "partition_taken_over": ("magenta", _partition_taken_over),
    "ledger_recovered": ("cyan", _ledger_recovered),
    "ledger_fenced": ("red", _ledger_fenced),
    "bookie_lost": ("yellow", _bookie_lost),
}
_HIDDEN = frozenset({"level", "service", "node", "ledger", "ledger_id"})


def in_words(event: LogEvent) -> tuple[str, str] | None:
    """(style, sentence) of an event that people care about; None for the others."""
    known = _WORDS.get(event.event)
    if known is None:
        return None
    style, say = known
    return style, say(event.fields)


def _names(bookies: object) -> str:
    if isinstance(bookies, list | tuple):
        return ", ".join(map(str, bookies))
    return str(bookies)


def _rest(found: Fields, *said: str) -> str:
    return ", ".join(
        f"{name} {value}"
        for name, value in found.items()
        if name not in _HIDDEN and name not in said and not name.endswith("_id")
    )
