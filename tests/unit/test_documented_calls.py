"""Every call, problem and command that a page names exists, with its parameters and options.

process/test_commands runs what a reader pastes. Pages name much more: calls in a sentence,
commands that need a cluster in containers, a damaged disk, or Spark.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import octavo.broker.http.server  # noqa: F401  # so that all errors are known
from octavo.broker import errors
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from octavo.cli.main import app
from octavo.protocol.codes import OctavoError

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
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
    """A call that a page names."""

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
    """Yield the calls in a page's sentences and in its `curl` lines."""
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
    """Return the calls of a bookie's admin port."""
    source = "".join(
        (ROOT / path).read_text() for path in ("bookie/node.py", "octavo/process/copies.py")
    )
    return set(re.findall(r'admin\.route\(\s*"(\w+)",\s*"(\S+?)"', source))


def _is_a_bookies(call: Call) -> bool:
    return (call.method, call.path) in of_bookies()


@pytest.mark.parametrize("page", PAGES)
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
    assert any(call.is_of(route) for page in PAGES for call in calls(page))


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
    return "".join((ROOT / page).read_text() for page in PAGES)


@cache
def problems() -> set[tuple[int, str]]:
    """Return each status with each code that a broker answers with it."""
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


@pytest.mark.parametrize("page", PAGES)
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


@pytest.mark.parametrize("page", PAGES)
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
