"""The output of `octavo topic explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.cli.output import emit_table, out


def show_explained(found: Mapping[str, Any]) -> None:
    parts = [part for part in found["partitions"] if "problem" not in part]
    names = ("partition", "owner", "load", "epoch", "earliest_offset", "next_offset")
    rows = [(*(part[name] for name in names), _ledgers(part)) for part in parts]
    emit_table((*names, "ledgers"), rows)
    _lines("")
    for part in parts:
        _lines(f"partition {part['partition']} is on {part['owner']}: {part['why']}")
    if found["subscription"] is not None:
        _show_subscription(found, parts)
    held = [line for part in parts for line in _held_back(part)]
    held += [
        f"partition {part['partition']}: {part['problem'].get('detail', 'no answer')}"
        for part in found["partitions"]
        if "problem" in part
    ]
    _lines("", *(held or ["nothing is held back"]))


def _ledgers(part: Mapping[str, Any]) -> str:
    numbers = [one["id"] for one in part["ledgers"]]
    shown = ", ".join(map(str, numbers[-3:]))
    return f"{len(numbers)}: … {shown}" if len(numbers) > 3 else shown


def _show_subscription(found: Mapping[str, Any], parts: list[Any]) -> None:
    _lines("", f"subscription {found['subscription']} ({found['type']})")
    rows = []
    for part in parts:
        told = part["subscription"]
        figures = told["figures"]
        row = (part["partition"], figures["committed_offset"], figures["backlog"])
        rows.append((*row, f"{figures['leased']} of {told['unacked_max']}"))
    emit_table(("partition", "committed_offset", "backlog", "unacked"), rows)
    consumers = [
        (
            part["partition"],
            one["name"],
            one["leased"],
            _share(one),
        )
        for part in parts
        for one in part["subscription"]["figures"]["consumers"]
    ]
    if consumers:
        _lines("")
        emit_table(("partition", "consumer", "unacked", "gets"), consumers)


def _share(consumer: Mapping[str, Any]) -> str:
    if "slots" in consumer:
        ranges = consumer.get("slot_ranges", "")
        return f"keys in {consumer['slots']} of 65536 slots" + (f": {ranges}" if ranges else "")
    if "active" in consumer:
        return "everything" if consumer["active"] else "nothing: it stands by"
    return ""


def _held_back(part: Mapping[str, Any]) -> list[str]:
    where = f"partition {part['partition']}"
    lines = [f"{where}, publishers: {why}" for why in part["publishing"]["held_back"]]
    told = part.get("subscription")
    if told is None:
        return lines
    lines += [f"{where}, consumers: {why}" for why in told["held_back"]]
    # An older broker does not send "waiting".
    lines += [f"{where}: {why}" for why in told.get("waiting", ())]
    lines += [
        f"{where}, consumer {one['name']}: {one['held_back']}"
        for one in told["figures"]["consumers"]
        if one.get("held_back") and one["held_back"] not in told["held_back"]
    ]
    if problem := told["figures"]["dead_letters"]["problem"]:
        lines.append(f"{where}, dead letters: {problem}")
    return lines


def _lines(*lines: str) -> None:
    for line in lines:
        out.print(line, markup=False)
