"""The output of commands: results on standard output, all other texts on standard error."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from octavo.terminal import visible

QUIET_S = 2.0
"""Report only longer waits: a take-over ends within seconds."""


class SafeConsole(Console):
    """A console that spells out escapes in users' names, values and errors, except for a pipe or
    file.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text for Rich, which calls this for every text, also in tables."""
        return super().render_str(visible(text) if self.is_terminal else text, **options)


out = SafeConsole(highlight=False, soft_wrap=True, emoji=False)
_pipe = SafeConsole(width=1000, highlight=False, emoji=False)
"""Wide, so that long paths and reasons are not folded in a pipe or a file."""
err = SafeConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def emit_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    sys.stdout.write((visible(text) if sys.stdout.isatty() else text) + "\n")


def emit_raw(data: bytes) -> None:
    emit_bytes(data + b"\n")


def emit_bytes(data: bytes) -> None:
    """Print bytes as they are; on a terminal, spell out escapes."""
    if sys.stdout.isatty():
        data = visible(data.decode(errors="replace")).encode()
    sys.stdout.buffer.write(data)


def emit_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    shown = None if title is None else escape(title)
    table = Table(title=shown, title_justify="left", box=None, header_style="bold", pad_edge=False)
    body = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[index], int | float) for row in body)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(escape(_cell(value)) for value in row))
    (out if out.is_terminal else _pipe).print(table)


def emit_fields(fields: Mapping[str, object]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(escape(name), escape(_cell(value)))
    (out if out.is_terminal else _pipe).print(table)


def say(text: str) -> None:
    err.print(text, markup=False)


def fail(cause: str, remedy: str = "") -> None:
    err.print("[bold red]error:[/] ", end="")
    err.print(cause + (f"\n  {remedy}" if remedy else ""), markup=False)


class Waiting:
    """Tell a person why a command waits: after `QUIET_S`, and each reason once."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._told = ""

    def __call__(self, error: Exception) -> None:
        """Say that the client will repeat a call because of `error`."""
        reason = str(getattr(error, "detail", error))
        if time.monotonic() - self._since > QUIET_S and reason != self._told:
            self._told = reason
            err.print(f"waiting: {reason}", markup=False)


def debugging() -> bool:
    return os.environ.get("OCTAVO_DEBUG", "") not in ("", "0")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):  # settings: leave out those without a value
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)
