"""The output of a demo: a live screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

LINE_EVERY_S = 3.0


class Screen:
    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self._started = time.monotonic()
        self._live = self.console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>12}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self._live,
        )
        self._task: TaskID | None = None
        self._name = ""
        self._total = 0
        self._done = 0
        self._since = 0.0
        self._last: tuple[float, int] = (0.0, 0)
        self._line_at = 0.0
        self.checks_failed = 0

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def headline(self, text: str) -> None:
        self._print(f"\n[bold]{escape(text)}[/]")

    def event(self, who: str, text: str, style: str = "cyan") -> None:
        self._print(
            f"[dim]{self.elapsed_s:6.1f} s[/]  [{style}]{escape(who):<10}[/] {escape(text)}"
        )

    def note(self, text: str) -> None:
        self._print(f"[dim]{escape(text)}[/]")

    def check(self, good: bool, text: str) -> bool:
        self.checks_failed += not good
        mark = "[bold green]  ok  [/]" if good else "[bold red]FAILED[/]"
        self._print(f"{mark} {escape(text)}")
        return good

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(f"{one:,}" if isinstance(one, int) else str(one) for one in row))
        self.console.print(table)

    def begin(self, name: str, total: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._name, self._total, self._done = name, total, 0
        self._since = time.monotonic()
        self._last = (self._since, 0)
        self._line_at = self._since
        self._task = self._bar.add_task(name, total=total, rate="")

    def progress(self, done: int) -> None:
        now = time.monotonic()
        self._done = done
        before, count = self._last
        if self._task is not None and now - before > 0.5:
            rate = (done - count) / (now - before)
            self._last = (now, done)
            self._bar.update(self._task, completed=done, rate=f"{rate:,.0f}/s")
        if not self._live and now - self._line_at >= LINE_EVERY_S:
            self._line_at = now
            self.event(self._name, f"{done:,} of {self._total:,}", "green")

    def end(self) -> float:
        took_s = max(time.monotonic() - self._since, 1e-9)
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._bar.refresh()
            self._task = None
        rate = self._done / took_s
        self.event(self._name, f"{self._done:,} in {took_s:.1f} s, {rate:,.0f}/s", "green")
        return rate

    def _print(self, text: str) -> None:
        self.console.print(text)
