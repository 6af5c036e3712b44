"""Users' text does nothing to the terminal that shows it; a pipe gets it unchanged. Escapes in
a message could set the title, move the cursor or write the reader's clipboard."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli import output
from octavo.cli.consume import _Printer
from octavo.client.types import Message
from octavo.terminal import visible

EVIL = "\x1b]0;owned\x07\x1b[2Jcaf\u00e9\x9b31m\u202etxt\r\x08"
SEEN = "\\x1b]0;owned\\x07\\x1b[2Jcaf\u00e9\\x9b31m\\u202etxt\\x0d\\x08"


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = visible(text)
    assert all(unicodedata.category(one) != "Cc" or one in "\n\t" for one in shown)
    assert visible(shown) == shown
    plain = "".join(one for one in text if one.isprintable())
    assert visible(plain) == plain


def test_what_it_looks_like() -> None:
    assert visible(EVIL) == SEEN
    assert visible("two\nlines\tand a tab, é, 中, 😀") == "two\nlines\tand a tab, é, 中, 😀"


class Out:
    """Standard output, of a terminal or of a pipe."""

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass

    def getvalue(self) -> str:
        return self.text

    @property
    def buffer(self) -> Any:
        return SimpleNamespace(write=lambda data: self.write(data.decode()))

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_consume(monkeypatch: pytest.MonkeyPatch, raw: bool, as_json: bool) -> None:
    message = Message(0, 7, "1:2:3", EVIL.encode(), EVIL.encode(), ((EVIL, EVIL.encode()),), 5)
    told = {}
    for terminal in (True, False):
        found = Out(terminal)
        monkeypatch.setattr(sys, "stdout", found)
        _Printer(None, raw, as_json).show(message)
        told[terminal] = found.getvalue()
    assert not any(one in told[True] for one in ("\x1b", "\x9b", "\u202e", "\x07", "\x08"))
    if as_json and not raw:
        assert json.loads(told[False])["value_text"] == EVIL
    else:
        assert EVIL in told[False]
        assert SEEN in told[True]


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_fields_and_errors(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    found = io.StringIO()
    console = output.SafeConsole(
        file=found, force_terminal=terminal, width=400, highlight=False, color_system=None
    )
    for name in ("out", "_pipe", "err"):
        monkeypatch.setattr(output, name, console)
    name = "a[bold]b[/]\x1b[2J\u202e"
    output.emit_table(("name",), [(name,)], title=name)
    output.emit_fields({name: name})
    output.say(name)
    output.fail(name, name)
    output.Waiting()
    text = found.getvalue()
    assert ("\x1b[2J" in text) != terminal
    assert ("\\x1b[2J" in text) == terminal
    assert text.count("a[bold]b[/]") == 7, "nor is it markup"


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        found = Out(terminal)
        monkeypatch.setattr(sys, "stdout", found)
        output.emit_json({"name": "\x9b\u202e\x7f"})
        assert ("\u202e" in found.getvalue()) != terminal


def run(code: str) -> bytes:
    """Run the code on a terminal, and return the bytes that the terminal got."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", code], stdout=theirs, stderr=theirs, check=True)
        os.close(theirs)
        theirs = -1
        found = b""
        try:
            while part := os.read(ours, 65536):
                found += part
        except OSError:  # the writer has closed the terminal
            pass
        return found
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def test_on_a_real_terminal() -> None:
    code = (
        "from octavo.cli.output import emit_raw, say\n"
        "from octavo.logs import configure_logging\n"
        "import structlog\n"
        "emit_raw(b'a\\x1b]0;owned\\x07b')\n"
        "say('c\\x1b]0;owned\\x07d')\n"
        "configure_logging(form='auto')\n"
        "structlog.get_logger().warning('seen', name='e\\x1b]0;owned\\x07f')\n"
    )
    found = run(code)
    assert b"\x1b]0;" not in found, found
    assert b"\x07" not in found
    for shown in (b"a\\x1b]0;owned\\x07b", b"c\\x1b]0;owned\\x07d", b"e\\x1b]0;owned\\x07f"):
        assert shown in found, found
