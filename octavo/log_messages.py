"""Describe the most important log events as sentences, for the demo and the console."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Fields = Mapping[str, Any]


def _ensemble_changed(found: Fields) -> str:
    return (
        f"ledger {found.get('ledger')}: ensemble changed from entry {found.get('first_entry')} on: "
        f"{_names(found.get('old'))} -> {_names(found.get('new'))}"
    )


def _ensemble_change_delayed(found: Fields) -> str:
    return (
        f"ledger {found.get('ledger')}: {_names(found.get('failed'))} failed and no spare bookie "
        "is up; writing continues with the ack quorum"
    )


def _partition_taken_over(found: Fields) -> str:
    partition = found.get("partition")
    if found.get("ledger") is None:
        return f"opened {partition} in {found.get('duration_ms')} ms: no ledger to recover"
    return (
        f"took over {partition} in {found.get('duration_ms')} ms: ledger {found.get('ledger')} "
        f"ends at entry {found.get('last_entry')}, the next message gets offset "
        f"{found.get('next_offset')}"
    )


def _ledger_recovered(found: Fields) -> str:
    return f"recovered ledger {found.get('ledger')}, last entry {found.get('last_entry')}"


def _ledger_fenced(found: Fields) -> str:
    return f"its ledger {found.get('ledger')} is fenced: {found.get('reason')}"


def _bookie_lost(found: Fields) -> str:
    if "closing" in str(found.get("reason")):
        return ""
    return f"lost {found.get('bookie')}: {found.get('reason')}"


_WORDS: dict[str, tuple[str, Callable[[Fields], str]]] = {
    "ensemble_changed": ("magenta", _ensemble_changed),
    "ensemble_change_delayed": ("yellow", _ensemble_change_delayed),
    "partition_taken_over": ("magenta", _partition_taken_over),
    "ledger_recovered": ("cyan", _ledger_recovered),
    "ledger_fenced": ("red", _ledger_fenced),
    "bookie_lost": ("yellow", _bookie_lost),
}


def in_words(event: str, fields: Fields) -> tuple[str, str] | None:
    known = _WORDS.get(event)
    if known is None:
        return None
    style, say = known
    text = say(fields)
    return (style, text) if text else None


_STEPS: dict[str, Callable[[Fields], str]] = {
    "MetadataSeen": lambda found: (
        f"read the record: {found['state']}, ensemble {_names(found['ensemble'])}, "
        f"version {found['version']}"
    ),
    "MarkedInRecovery": lambda found: (
        f"compare-and-set the record to {found['state']} (version {found['version']}): "
        "the old owner can no longer change it"
    ),
    "FenceAnswered": lambda found: (
        f"fence {found['bookie_id']}: {found['answer']}"
        + (
            f", last confirmed {found['last_add_confirmed']}"
            if found.get("last_add_confirmed") is not None
            else ""
        )
    ),
    "FenceHeld": lambda found: (
        "enough bookies are fenced: adds of the old owner can no longer reach an ack quorum; "
        f"entries up to {found['last_add_confirmed']} are certainly confirmed"
    ),
    "EntryAnswered": lambda found: (
        f"recovery read of entry {found['entry_id']} at {found['bookie_id']}: {found['answer']}"
    ),
    "LastEntryFound": lambda found: (
        f"enough bookies deny the entry after {found['last_entry']}: the ledger ends there"
    ),
    "WrittenBack": lambda found: (
        f"write entries {found['first_entry']} to {found['last_entry']} back to "
        f"{found['bookie_id']}"
        if found["first_entry"] != found["last_entry"]
        else f"write entry {found['first_entry']} back to {found['bookie_id']}"
    ),
    "BookieReplaced": lambda found: (
        f"replace from entry {found['first_entry']} on: {_names(found['old'])} -> "
        f"{_names(found['new'])}"
    ),
    "LedgerRecovered": lambda found: (
        f"compare-and-set the record to {found['state']} (version {found['version']}), "
        f"last entry {found['last_entry']}: it never changes again"
    ),
}


def recovery_step_in_words(found: Fields) -> str:
    say = _STEPS.get(str(found.get("what")))
    return f"step {found.get('step')}: " + (say(found) if say else str(dict(found)))


def _names(bookies: object) -> str:
    if isinstance(bookies, list | tuple):
        return ", ".join(map(str, bookies))
    return str(bookies)
