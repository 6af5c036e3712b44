"""The pages agree with the code and with each other."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import octavo.broker.http.server  # noqa: F401
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import DamageRegistry
from octavo.bookie.gc.status import CollectorStatus
from octavo.bookie.metrics import BookieMetrics
from octavo.bookie.stats import ReadStats
from octavo.broker import errors
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from octavo.broker.metrics import Duties, Metrics
from octavo.cli.main import app
from octavo.ledger.options import LedgerOptions
from octavo.ledger.rereplication.comparing import ComparingStatus
from octavo.ledger.rereplication.keeper import KeeperStatus
from octavo.process.copies import CopyMetrics
from octavo.protocol.codes import OctavoError
from octavo.standalone.supervisor import SMALLER
from tests.attack.memory import MIB, bookie_parts, broker_parts
from tests.model.models import MODELS
from tests.sim.mutants import MUTANTS
from tests.support.settings_page import KINDS, written
from tests.support.sources import nodes_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "metadata", "ledger", "bookie", "broker", "octavo")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("compose/*.md"))
)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for path, fragment in LINK.findall((ROOT / page).read_text()):
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        if fragment and target.suffix == ".md":
            assert fragment in anchors(target), f"{path}#{fragment}"


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/testing.md"]
)
def test_targets_and_files_that_are_named_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:^ *|`)make ([a-z-]+)", text, re.MULTILINE):
        assert target in targets, target
    tops = "bench|bookie|broker|compose|docs|ledger|metadata|octavo|protocol|tests"
    for path in re.findall(rf"(?:`|pytest )((?:{tops})/[\w/.*-]+)", text):
        assert list(ROOT.glob(path)) or list(ROOT.glob(f"{path}.py")), path


@cache
def code() -> tuple[set[str], str]:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {path.stem for path in modules}, "\n".join(path.read_text() for path in modules)


def rows() -> list[tuple[str, str]]:
    found = []
    for line in (ROOT / "docs/glossary.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| word"):
            word, _, names = (cell.strip() for cell in line.strip("|").split("|"))
            found += [(word, name) for name in re.findall(r"`([^`]+)`", names)]
    return found


@pytest.mark.parametrize(("word", "name"), rows(), ids=lambda one: str(one))
def test_the_glossary_names_what_is_there(word: str, name: str) -> None:
    modules, text = code()
    if "/" in name:
        assert (ROOT / name).is_file(), word
    elif name not in modules:
        assert re.search(rf"^\s*(class|def|async def) {name}\b|\b{name}:", text, re.MULTILINE), word


# docs/limits.md has every bound that is a setting or that the HTTP API meets, with its default.
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


def limits() -> list[Row]:
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
    small = re.split(r"[:.]", name)[-1].lower()
    if "bytes" in small:
        for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
            if value % size == 0:
                return f"{int(value) // size} {unit}"
        return f"{int(value):,} bytes"
    unit = " ms" if "_ms" in small else " s" if "_s_" in small else ""
    return f"{int(value):,}{unit}"


def bounds() -> set[str]:
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
    named = [name_of(row) for row in limits()]
    assert sorted(named) == sorted(set(named))
    assert bounds() - INSIDE <= set(named), "write a row for each of these in docs/limits.md"
    assert not INSIDE & set(named)


def test_the_defaults_are_those_of_the_code() -> None:
    for row in limits():
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
    for row in limits():
        assert row.of, row
        assert row.at, row
        if row.test == "–":
            without += 1
            continue
        assert (ROOT / "tests" / row.test.strip("`")).is_file(), row
    assert without <= 2, "a bound without a test: write one"


# docs/operations.md names every setting with its default, every metric and every log event.
METRIC_PACKAGES = ("bookie", "broker", "ledger", "metadata", "octavo")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
EVENTS, REST = OPERATIONS.split("## Log events")[1].split("## Metrics")
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
    firsts = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return {name for first in firsts for name in re.findall(r"`(\w+)`", first)}


def logged_events() -> set[str]:
    found = set(CHOSEN_BEFORE)
    for path in (path for package in METRIC_PACKAGES for path in (ROOT / package).rglob("*.py")):
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
    assert written(OPERATIONS) == OPERATIONS
    table = OPERATIONS.split("### bookie\n")[1].split("### broker\n")[0]
    assert "| `port` | 3181 | 0 takes any free port (tests) |" in table


def test_a_row_that_differs_from_its_declaration_is_written_anew() -> None:
    row = "| `admin_port` | none | "
    before, _, after = OPERATIONS.partition(row)
    assert written(before + "| `admin_port` | 9 | " + after) == OPERATIONS
    assert written(OPERATIONS.replace("| `rack` | empty |", "| `shelf` | empty |")) == OPERATIONS


# Every worked example in docs/formats is built again and compared byte by byte.
FORMAT_PAGES = sorted((Path(__file__).resolve().parents[2] / "docs/formats").glob("*.md"))
FENCE = re.compile(r"^```(python|hex)[ \t]+(\S+)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
UNLABELLED = re.compile(r"^```hex[ \t]*$", re.MULTILINE)


class Example(NamedTuple):
    page: str
    label: str
    code: str
    wanted: bytes


def bytes_of(block: str) -> bytes:
    return bytes.fromhex("".join(line.split("#")[0] for line in block.splitlines()))


def examples_of(page: str, text: str) -> list[Example]:
    if UNLABELLED.search(text):
        raise ValueError(f"{page}: a hex block has no label")
    code: dict[str, str] = {}
    found: list[Example] = []
    for language, label, block in FENCE.findall(text):
        if language == "python":
            if label in code:
                raise ValueError(f"{page}: two python blocks are labelled {label}")
            code[label] = block
        elif label in code:
            found.append(Example(page, label, code[label], bytes_of(block)))
        else:
            raise ValueError(f"{page}: no python block before the hex block {label}")
    if unused := code.keys() - {example.label for example in found}:
        raise ValueError(f"{page}: no hex block for {sorted(unused)}")
    return found


EXAMPLES = [
    example for page in FORMAT_PAGES for example in examples_of(page.name, page.read_text())
]


@pytest.mark.parametrize("page", FORMAT_PAGES, ids=lambda page: page.stem)
def test_every_page_has_a_worked_example(page: Path) -> None:
    assert examples_of(page.name, page.read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: f"{one.page}:{one.label}")
def test_the_example_is_what_the_code_makes(example: Example) -> None:
    names: dict[str, object] = {}
    exec(compile(example.code, f"{example.page}:{example.label}", "exec"), names)
    assert "example" in names, "the python block sets `example`"
    made = bytes(names["example"])  # type: ignore[call-overload]
    assert made.hex(" ", -4) == example.wanted.hex(" ", -4)


GOOD = "```python one\nexample = b'a'\n```\n\n```hex one\n61 # a\n```\n"


def test_the_mechanism_sees_what_is_wrong() -> None:
    assert examples_of("p", GOOD) == [Example("p", "one", "example = b'a'\n", b"a")]
    for wrong in (
        "```hex\n61\n```\n",
        GOOD.replace("python one", "python two"),
        GOOD.replace("hex one", "text one"),
        GOOD + GOOD,
        GOOD.replace("61", "6"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            examples_of("p", wrong)


# Every call, problem and command that a page names exists, with its parameters and options.
CALL_PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/pipeline").glob("*.md")),
        *sorted((ROOT / "compose").glob("*.md")),
    )
    if path.name != "planted_bugs.md"
]
OF_A_PARTITION = "/partitions/{partition}"
METHODS = {"HEAD": "GET", "OPTIONS": "GET"}
"""Every GET answers these, too."""


class Call(NamedTuple):
    page: str
    line: int
    method: str
    path: str
    query: str

    def is_of(self, route: Route) -> bool:
        """`…/messages` is any path that ends so; `…/partitions/{n}` may be left out."""
        if METHODS.get(self.method, self.method) != route.method:
            return False
        return any(
            _fits(path, self.path) for path in (route.path, route.path.replace(OF_A_PARTITION, ""))
        )


def _fits(template: str, path: str) -> bool:
    have, asked = ([step for step in one.split("/") if step] for one in (template, path))
    if asked[:1] == ["…"]:
        asked = asked[1:]
        have = have[-len(asked) :]
    return len(have) == len(asked) and all(
        one == other or one.startswith("{") for one, other in zip(have, asked, strict=True)
    )


def commands(name: str, page: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the words after each `name` that a reader of the page types, with the line of its
    block."""
    text = (ROOT / page).read_text()
    for found in re.finditer(r"^```(?:sh|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        number = text.count("\n", 0, found.start()) + 1
        block = found[1].replace("\\\n", " ")
        if "\n$ " in "\n" + block:  # a session: the other lines are output
            block = "\n".join(re.findall(r"^\$ (.*)", block, re.MULTILINE))
        block = re.sub(r"(?:^|\s)#.*", "", block, flags=re.MULTILINE)
        for variable, value in re.findall(r"^(\w+)=(\S+)$", block, re.MULTILINE):
            block = block.replace(f"${variable}", value)
        block = re.sub(r"\$\(\(.*?\)\)|\$\w+", "1", block)
        for part in re.findall(r"\$\(([^()]*)\)", block):
            yield from ((number, words) for words in _typed(name, part))
        yield from ((number, words) for words in _typed(name, re.sub(r"\$\([^()]*\)", "1", block)))


def _typed(name: str, block: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(block, posix=True, punctuation_chars="|&;<>\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    lexer.commenters = ""
    part: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("|&;<>\n"):
            part.append(word)
            continue
        while part and (re.fullmatch(r"\w+=.*", part[0]) or part[0] in ("do", "until", "[")):
            part = part[1:]
        if part[:1] == [name]:
            yield part[1:]
        part = []


def calls(page: str) -> list[Call]:
    text = (ROOT / page).read_text()
    found = []
    for one in re.finditer(r"`(GET|PUT|POST|PATCH|DELETE|HEAD|OPTIONS) ([/…][^`\s]*)", text):
        path, _, query = one[2].partition("?")
        found.append(Call(page, text.count("\n", 0, one.start()) + 1, one[1], path, query))
    found += [_curled(page, number, words) for number, words in commands("curl", page)]
    return [one for one in found if not _is_a_bookies(one)]


def _curled(page: str, number: int, words: list[str]) -> Call:
    method, url = "", ""
    rest = iter(words)
    for word in rest:
        if word in ("-X", "-H", "-d", "--data-binary", "-T", "-u", "--cacert", "-o", "-w"):
            value = next(rest)
            if word == "-X":
                method = value
            elif word in ("-d", "--data-binary"):
                method = method or "POST"
            elif word == "-T":
                method = method or "PUT"
        elif not word.startswith("-"):
            url = word
    path = re.sub(r"^(?:https?://)?[^/]*", "", url)
    path, _, query = path.partition("?")
    return Call(page, number, method or "GET", path or "/", query)


@cache
def of_bookies() -> set[tuple[str, str]]:
    source = "".join(
        (ROOT / path).read_text() for path in ("bookie/node.py", "octavo/process/copies.py")
    )
    return set(re.findall(r'admin\.route\(\s*"(\w+)",\s*"(\S+?)"', source))


def _is_a_bookies(call: Call) -> bool:
    return (call.method, call.path) in of_bookies()


@pytest.mark.parametrize("page", CALL_PAGES)
def test_calls_that_a_page_names_are_routes(page: str) -> None:
    for call in calls(page):
        found = [route for route in ROUTES if call.is_of(route)]
        assert found, f"{call}: no such call"
        for name in re.findall(r"(\w+)=", call.query):
            assert any(name in route.query_names for route in found), f"{call}: no {name}="


def test_what_is_looked_at_is_found() -> None:
    assert len(calls("docs/http.md")) > 50
    assert len(calls("README.md")) >= 6
    assert ("POST", "/gc") in of_bookies()
    assert len([*commands("octavo", "docs/security.md")]) > 25


@pytest.mark.parametrize(
    "route",
    [one for one in ROUTES if not one.inner and OF_A_PARTITION + "/" not in one.path],
    ids=lambda one: one.name,
)
def test_every_public_call_is_on_a_page(route: Route) -> None:
    assert any(call.is_of(route) for page in CALL_PAGES for call in calls(page))


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if not one.inner], ids=lambda one: one.name
)
def test_every_parameter_of_a_public_call_is_on_a_page(route: Route) -> None:
    for one in route.parameters:
        if one.place != "path":
            named = rf"[`?&]{one.name}\b|`[^`\n]*\b{one.name}\b[^`\n]*`"
            assert re.search(named, _all_pages()), f"{one.place} {one.name}"


@cache
def _all_pages() -> str:
    return "".join((ROOT / page).read_text() for page in CALL_PAGES)


@cache
def problems() -> set[tuple[int, str]]:
    source = "\n".join(path.read_text() for path in (ROOT / "broker").rglob("*.py"))
    names = dict(re.findall(r'^(\w+) = "([a-z-]+)"', source, re.MULTILINE))
    found = {
        (int(status), names.get(code, code.strip('"')))
        for status, code in re.findall(r'Problem\(\s*(\d{3}),\s*("[a-z-]+"|\w+)', source)
    }
    for kind in _kinds(OctavoError):
        if kind.http_status is not None:
            found.add((kind.http_status, kind.name))
    codes = (code for code in vars(errors).values() if isinstance(code, errors.ErrorCode))
    return found | {(code.http_status, code.name) for code in codes}


def _kinds(kind: type[OctavoError]) -> Iterator[type[OctavoError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _kinds(one)


@pytest.mark.parametrize("page", CALL_PAGES)
def test_problems_that_a_page_names_are_answered_so(page: str) -> None:
    text = (ROOT / page).read_text()
    for status, code in re.findall(r"`([45]\d\d) ([a-z]+(?:-[a-z]+)+)`", text):
        assert (int(status), code) in problems(), f"{status} {code}"


def _parse(words: list[str]) -> None:
    """Parse a command line as `octavo` does, without running it. Raises the error of a mistake."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("octavo", list(words))
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        if not rest and command.invoke_without_command:
            return
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", CALL_PAGES)
def test_commands_that_a_page_shows_can_be_typed(page: str) -> None:
    for number, words in commands("octavo", page):
        try:
            _parse([word for word in words if word != "…"])
        except typer.Exit:
            pass  # --help
        except Exception as error:
            raise AssertionError(f"{page}:{number}: octavo {shlex.join(words)}: {error}") from error


@pytest.mark.parametrize(
    "words", [["topic", "make", "x"], ["publish", "x", "--ky", "1"], ["consume"]], ids=" ".join
)
def test_a_mistake_in_a_command_is_seen(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"No such|Missing"):
        _parse(words)


# GUARANTEES.md and docs/properties.md name tests and properties that exist, and all of them.
TESTS = ROOT / "tests"
PROMISE_PAGES = ("GUARANTEES.md", "docs/properties.md", "docs/simulation.md")
PROPERTY = re.compile(r"\b(S[1-9]|P[1-9]\d?)\b")
NAMED = re.compile(
    r"`(?:tests/)?((?:unit|cluster|process|issues|conformance|support|sim|network|zookeeper)/[\w/.*]+)`"
)
BUG = re.compile(r"\bbugs?:? ((?:\d+(?:, )?)+)")


def properties() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (ROOT / "docs/properties.md").read_text().splitlines():
        if line.startswith("| "):
            for name in expanded(line.split("|")[1]):
                found[name] = line
    return found


def expanded(cell: str) -> list[str]:
    """`P52–P58` names seven."""
    names = PROPERTY.findall(cell)
    if "–" in cell and len(names) == 2:
        first, last = (int(name[1:]) for name in names)
        return [f"{names[0][0]}{number}" for number in range(first, last + 1)]
    return [str(name) for name in names]


@pytest.mark.parametrize("page", PROMISE_PAGES)
def test_the_tests_that_are_named_are_there(page: str) -> None:
    named = NAMED.findall((ROOT / page).read_text())
    assert named or page == "docs/simulation.md"
    for name in named:
        bare = TESTS / name
        found = [bare, bare.with_suffix(".py"), TESTS / f"{name}.py"]
        assert any(path.exists() for path in found) or list(TESTS.glob(name)), name


def test_each_property_has_a_row() -> None:
    wanted = {f"S{number}" for number in range(1, 10)} | {f"P{number}" for number in range(1, 67)}
    assert set(properties()) == wanted


def test_what_the_referees_check_has_a_row_that_says_so() -> None:
    for path in sorted((TESTS / "sim").glob("*.py")):
        for name in re.findall(r"\"(S[1-9]|P[1-9]\d?) ", path.read_text()):
            assert "sim" in properties()[name], f"{path.name} checks {name}"


def test_planted_bugs_are_named_where_they_break_something() -> None:
    canon = {str(mutant.canon) for mutant in MUTANTS.values() if mutant.canon}
    for name, row in properties().items():
        for numbers in BUG.findall(row):
            unknown = set(re.findall(r"\d+", numbers)) - canon
            assert not unknown, f"{name} names planted bugs {unknown}, which are not there"
    for mutant in MUTANTS.values():
        for name in PROPERTY.findall(mutant.breaks):
            assert name in properties(), f"{mutant.name} breaks {name}"


def test_promises_name_properties_and_models_that_are_there() -> None:
    text = (ROOT / "GUARANTEES.md").read_text()
    assert set(PROPERTY.findall(text)) <= set(properties())
    models = set(re.findall(r"\bM\d\b", text))
    assert models <= {name.partition("-")[0] for name in MODELS}
