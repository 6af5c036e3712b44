"""Make the Markdown for docs/performance.md from a run's JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers import table
from bench.peers.contract import KINDS, ROOT, SYSTEMS
from bench.peers.figures import Failed

PAGE = ROOT / "docs/performance.md"
BEGIN = "<!-- bench.peers: what is below is written by `python -m bench.peers --page` -->"
END = "<!-- bench.peers: end -->"


def text(document: Mapping[str, Any]) -> str:
    names = [name for name in SYSTEMS if name in document["durability"]]
    return "\n".join(
        [
            _head(document),
            "",
            *table.rows(document["rounds"]),
            "",
            f"Servers' resident memory at the end, MB: {table.listed(document['resident_mb'])}. "
            f"Idle, of a core: {table.listed(document['idle_cores'])}.",
            "Durability: " + "; ".join(_durabilities(names)) + ".",
            *(line for name in names for line in _left_out(name, document)),
        ]
    )


def _head(document: Mapping[str, Any]) -> str:
    rounds = len({one["round"] for one in document["rounds"]})
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(document["versions"].items())
    )
    parts = [
        f"{document['date']}, {document['cores']} cores, Python {document['python']}; {versions}",
        f"{document['messages']:,} messages or {document['seconds']:g} s each; medians of "
        f"{rounds} rounds in turns, then the rounds",
        "latencies are p50 / p99 / p99.9 from when each was due",
    ]
    if "minutes" in document:
        parts.append(
            f"it took {document['minutes']:g} minutes, in which everything else on the machine, "
            f"the kernel's own work included, used {document['others_cores']:g} of a core"
        )
    if "note" in document:
        parts.append(document["note"])
    return "; ".join(parts) + "."


def _durabilities(names: Sequence[str]) -> list[str]:
    """Return each kind of durability with the systems that have it."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(SYSTEMS[name].durability, []).append(name)
    return [f"{kind}: {', '.join(of)}" for kind, of in kinds.items()]


def _left_out(name: str, document: Mapping[str, Any]) -> list[str]:
    if name in document["missing"]:
        return [f"{name} is not in the table: {document['missing'][name]}"]
    system = SYSTEMS[name]
    kind = next(one for one in KINDS if set(one) & set(system.workloads))
    lacking = [one for one in kind if one not in system.workloads]
    return [f"{name} has no {', '.join(lacking)}: {system.lacks}."] if lacking else []


def write(path: Path, made: str) -> None:
    """Put the text between the marks. Raises `Failed` unless each mark is there once, in order."""
    page = path.read_text()
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise Failed(f"{path} must have a line {BEGIN!r}, and a line {END!r} after it, once each")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")
