"""docs/limits.md has every bound that is a setting or that the HTTP API meets, with its default."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from octavo.bookie.config import BookieConfig
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.ledger.options import LedgerOptions
from octavo.standalone.supervisor import SMALLER
from tests.attack.memory import MIB, bookie_parts, broker_parts
from tests.support.settings_page import KINDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "limits.md"
INSIDE = {
    "broker.reopen_delay_ms_max",
    "broker.dead_letter_retry_ms_max",
    "octavo.broker.cluster.background_tasks:PAUSE_S_MAX",
    "octavo.broker.operations.channel:NUMBER_MAX",
    "octavo.broker.operations.routing:PAUSE_S_MAX",
    "octavo.broker.http.call:OFFSET_MAX",
    "octavo.protocol.limits:LONG_POLL_MS_MAX",
}
"""Pauses between attempts, and bounds that the page has under another name."""


class Row(NamedTuple):
    name: str
    default: str
    of: str
    at: str
    test: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [Row(*(cell.strip() for cell in line.strip("|").split(" | "))) for line in lines]


def name_of(row: Row) -> str:
    return row.name.strip("`")


def value_of(name: str) -> Any:
    module, colon, constant = name.partition(":")
    if colon:
        return getattr(importlib.import_module(module), constant)
    section, _, setting = name.partition(".")
    return {field.name: field.default for field in dataclasses.fields(KINDS[section])}[setting]


def shown(name: str, value: float) -> str:
    """Return a bound as the page has it."""
    small = re.split(r"[:.]", name)[-1].lower()
    if "bytes" in small:
        for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
            if value % size == 0:
                return f"{int(value) // size} {unit}"
        return f"{int(value):,} bytes"
    unit = " ms" if "_ms" in small else " s" if "_s_" in small else ""
    return f"{int(value):,}{unit}"


def bounds() -> set[str]:
    """Return settings that are bounds: of the wire, of HTTP and of its brokers."""
    found = {
        f"{section}.{field.name}"
        for section, kind in KINDS.items()
        for field in dataclasses.fields(kind)
        if field.name.endswith("_max")
    }
    for path in (*sorted((ROOT / "broker").rglob("*.py")), ROOT / "protocol" / "limits.py"):
        module = ".".join(("octavo", *path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.parse(path.read_text()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z_]*_MAX", target.id):
                found.add(f"{module}:{target.id}")
    return found


def test_every_bound_is_on_the_page_once() -> None:
    named = [name_of(row) for row in rows()]
    assert sorted(named) == sorted(set(named))
    assert bounds() - INSIDE <= set(named), "write a row for each of these in docs/limits.md"
    assert not INSIDE & set(named)


def test_the_defaults_are_those_of_the_code() -> None:
    for row in rows():
        name = name_of(row)
        assert row.default == shown(name, value_of(name)), name


def test_what_a_process_takes_is_what_the_attack_holds_it_to() -> None:
    small = {kind: {**how} for kind, how in SMALLER.items()}
    http, ledger = HttpConfig(), LedgerOptions()
    folders: Any = {"journal_directories": ("/j",), "ledger_directories": ("/l",)}
    sums = {
        "broker": [
            broker_parts(BrokerConfig(broker_id="a", **how), http, ledger)
            for how in ({}, small["broker"])
        ],
        "bookie": [
            bookie_parts(BookieConfig(bookie_id="a", **folders, **how))
            for how in ({}, small["bookie"])
        ],
    }
    page = PAGE.read_text()
    for kind, (default, standalone) in sums.items():
        told = page.split(f"| {kind} | made of |")[1].split("\n\n")[0].splitlines()[2:]
        expected = [(name, size, standalone[name]) for name, size in default.items()]
        expected.append(("all", sum(default.values()), sum(standalone.values())))
        found = [[cell.strip() for cell in line.strip("|").split("|")] for line in told]
        assert [(row[0], row[2], row[3]) for row in found] == [
            (name, str(round(most / MIB)), str(round(here / MIB))) for name, most, here in expected
        ]


def test_each_row_says_what_happens_and_names_a_test_that_is_there() -> None:
    without = 0
    for row in rows():
        assert row.of, row
        assert row.at, row
        if row.test == "–":
            without += 1
            continue
        assert (ROOT / "tests" / row.test.strip("`")).is_file(), row
    assert without <= 2, "a bound without a test: write one"
