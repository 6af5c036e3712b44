"""docs/operations.md names every setting with its default, every metric and every log event."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

from octavo.bookie.disk.damage import DamageRegistry
from octavo.bookie.gc.status import CollectorStatus
from octavo.bookie.metrics import BookieMetrics
from octavo.bookie.stats import ReadStats
from octavo.broker.metrics import Duties, Metrics
from octavo.ledger.rereplication.comparing import ComparingStatus
from octavo.ledger.rereplication.keeper import KeeperStatus
from octavo.process.copies import CopyMetrics
from tests.support.settings_page import written
from tests.support.sources import nodes_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bookie", "broker", "ledger", "metadata", "octavo")
PAGE = (ROOT / "docs" / "operations.md").read_text()
EVENTS, REST = PAGE.split("## Log events")[1].split("## Metrics")
METRICS, SETTINGS = REST.split("## Settings")
LEVELS = {"debug", "info", "warning", "error", "critical"}
CHOSEN_BEFORE = {
    *(
        "partition_taken_over",
        "partition_taken_as_left",
        "partition_reopened",
        "ledger_fenced",
        "writer_ended",
    ),
    "recovery_step",
    "audit",
}
"""Events whose names are not in the call that logs them."""


def names_in(text: str) -> set[str]:
    """Return the names in backquotes in the first column of a table."""
    firsts = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return {name for first in firsts for name in re.findall(r"`(\w+)`", first)}


def logged_events() -> set[str]:
    found = set(CHOSEN_BEFORE)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in nodes_of(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if not isinstance(node.func, ast.Attribute) or node.func.attr not in LEVELS:
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id in ("log", "_log"):
                texts = [n.value for n in nodes_of(node.args[0]) if isinstance(n, ast.Constant)]
                found |= {text for text in texts if re.fullmatch(r"[a-z]+(_[a-z]+)*", str(text))}
    return found


def test_every_log_event_is_on_the_page_and_no_other() -> None:
    assert names_in(EVENTS) == logged_events()


def test_every_metric_is_on_the_page_and_no_other() -> None:
    found: set[str] = {
        "octavo_bookie_queue_bytes",
        "octavo_bookie_ledgers",
        "octavo_bookie_entry_logs_open",
    }  # bookie/node.py adds these
    bookie = BookieMetrics()
    bookie.reads_of(ReadStats())
    bookie.memory(lambda: {"adds": (0, 0)})
    bookie.damages(DamageRegistry().counts)
    bookie.scrubbing(lambda: (0, 0, -1))
    bookie.garbage(CollectorStatus())
    bookie.registry.register(CopyMetrics(KeeperStatus(), ComparingStatus()))
    for family in bookie.registry.collect():
        found.add(family.name + ("_total" if family.type == "counter" else ""))
    told = asyncio.run(Metrics(list, Duties).text()).decode()
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", told, re.MULTILINE)
    found |= {name for name, _ in kinds if not name.endswith("_created")}
    assert names_in(METRICS) == found
    assert all(name.startswith("octavo_") for name in found), "one prefix finds all of them"


def test_every_bookie_metric_says_its_unit_and_when_to_worry() -> None:
    rows = [line for line in METRICS.splitlines() if line.startswith("| `octavo_bookie_")]
    assert rows
    for row in rows:
        _, _, unit, _, what, worry, _ = (cell.strip() for cell in row.split("|"))
        assert re.match(r"(counter|gauge|histogram)s?: ", unit), row
        assert what, row
        assert worry, row


def test_every_setting_is_on_the_page_as_it_is_declared() -> None:
    """If this fails, run `python -m tests.support.settings_page`."""
    assert written(PAGE) == PAGE
    table = PAGE.split("### bookie\n")[1].split("### broker\n")[0]
    assert "| `port` | 3181 | 0 takes any free port (tests) |" in table


def test_a_row_that_differs_from_its_declaration_is_written_anew() -> None:
    row = "| `admin_port` | none | "
    before, _, after = PAGE.partition(row)
    assert written(before + "| `admin_port` | 9 | " + after) == PAGE
    assert written(PAGE.replace("| `rack` | empty |", "| `shelf` | empty |")) == PAGE
