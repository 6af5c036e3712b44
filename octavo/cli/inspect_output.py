"""The output of `octavo inspect`, in pieces: memory does not depend on the log's length."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from octavo.cli.output import SafeConsole, emit_fields, emit_json, err, out, say

if TYPE_CHECKING:
    from octavo.inspect.line import Line
    from octavo.inspect.walks import Walk

LIMIT = 200
_ROWS = 500
_wide = SafeConsole(width=140, highlight=False, emoji=False)
_STYLE = {"damage": "bold red", "torn": "yellow", "free": "dim", "entry": "cyan"}
_FIELDS_ONLY = ("cookie", "mark", "limbo")
_BAR_FROM_BYTES = 8 * 1024 * 1024


class Shown:
    def __init__(
        self, kind: str, *, verify: bool, limit: int | None, as_json: bool, running: str | None
    ) -> None:
        self._kind = kind
        self._verify = verify
        self._as_json = as_json
        self._left = limit if limit is not None else (0 if as_json else LIMIT)
        self._limited = self._left > 0
        self._hidden = 0
        self._running = running
        self._lines: Counter[str] = Counter()
        self._entries = 0
        self._unknown_digests = 0
        self._damage: list[str] = []
        self._damages = 0

    def walk(self, walk: Walk) -> None:
        if not self._as_json:
            title = f"{short(walk.path)} ({walk.bytes:,} bytes)"
            out.print(f"[bold]{escape(title)}[/]")
        rows: list[Line] = []
        place, name = 0, walk.path.rpartition("/")[2]
        with byte_progress(name, walk.bytes, hidden=self._as_json) as advance:
            for line in walk.lines():
                self._count(line, walk.path)
                if line.offset + line.length > place:
                    advance(line.offset + line.length - place)
                    place = line.offset + line.length
                if self._limited and not self._left and not line.damage:
                    self._hidden += 1
                    continue
                self._left -= self._limited and self._left > 0
                if self._as_json:
                    emit_json(line.as_json(walk.path))
                    continue
                rows.append(line)
                if len(rows) >= _ROWS:
                    self._table(rows)
                    rows = []
        if rows:
            self._table(rows)

    def _count(self, line: Line, path: str) -> None:
        from octavo.inspect.line import entries_of

        self._lines[line.kind] += 1
        self._unknown_digests += line.fields.get("digests_unknown", 0)
        if line.kind in ("block", "extent"):
            self._entries += line.fields.get("entries", 0)
        for one in line.damage:
            self._damages += 1
            if len(self._damage) < LIMIT:
                span = f"bytes {one.offset:,}–{one.offset + one.length:,}"
                what = f"{short(path)} {span}: {one.kind.value}"
                if one.ledger_id is not None:
                    what += f", ledger {one.ledger_id}"
                if one.first is not None:
                    what += f" {entries_of(one.first, one.last)}"
                self._damage.append(what)

    def _table(self, lines: list[Line]) -> None:
        if self._kind in _FIELDS_ONLY:
            for line in lines:
                emit_fields(_flat(line))
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("offset", "bytes"):
            table.add_column(column, justify="right", min_width=11)
        table.add_column("what", min_width=9)
        for column in ("ledger", "entries"):
            table.add_column(column, min_width=8)
        table.add_column("", overflow="fold")
        for line in lines:
            style = "bold red" if line.damage else _STYLE.get(line.kind, "")
            cells = (
                f"{line.offset:,}",
                f"{line.length:,}",
                "  " * line.depth + line.kind,
                str(line.fields.get("ledger", "")),
                _span(line.fields),
                ("DAMAGED: " if line.damage else "") + line.note,
            )
            table.add_row(*map(escape, cells), style=style)
        (out if out.is_terminal else _wide).print(table)

    def summary(self) -> bool:
        if self._hidden:
            say(f"… {self._hidden:,} more lines; --limit 0 shows all")
        if self._running is not None:
            say(
                f"process {self._running} runs this bookie: the last lines may be an unfinished "
                "write, and more may follow"
            )
        parts = [f"{count:,} × {kind}" for kind, count in sorted(self._lines.items())]
        if self._entries:
            parts.append(f"{self._entries:,} entries")
        say(" · ".join(parts) or "the file is still empty")
        if self._verify and self._unknown_digests:
            say(
                f"the digests of {self._unknown_digests:,} entries could not be checked (hmac or "
                "none): name them with --digest and --password. The checksums around them are right"
            )
        if not self._damages:
            if self._verify:
                say("no damage found")
            return True
        for one in self._damage:
            err.print("[bold red]damage:[/] ", end="")
            err.print(one, markup=False)
        if self._damages > len(self._damage):
            say(f"{self._damages - len(self._damage):,} more damaged places")
        return False


def short(path: str) -> str:
    return min(path, os.path.relpath(path), key=len)


def _span(fields: dict[str, Any]) -> str:
    if "first" not in fields:
        return ""
    first, last = fields["first"], fields["last"]
    return f"{first}" if first == last else f"{first}–{last}"


def _flat(line: Line) -> dict[str, object]:
    from octavo.inspect.line import time_of

    found: dict[str, object] = {}
    for name, value in line.fields.items():
        if name == "journals":
            places = [
                f"{one['folder'] or 'one folder'}: file {one['file_id']}, byte {one['offset']:,}"
                for one in value
            ]
            value = "\n".join(places)
        elif name.endswith("_ms"):
            name, value = name.removesuffix("_ms"), time_of(value)
        elif isinstance(value, list | tuple):
            value = ", ".join(map(str, value)) or "none"
        found[name.replace("_", " ")] = value
    if line.note:
        found["DAMAGED" if line.damage else "note"] = line.note
    return found


@contextmanager
def byte_progress(what: str, total: int, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; yields the function to call with bytes done."""
    if hidden or total < _BAR_FROM_BYTES or not err.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
