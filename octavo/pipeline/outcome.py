"""The end of a job: a summary, findings, and the exit code. Pure.

    0 ok · 1 findings · 2 usage · 3 failed · 130 interrupted (SIGINT) · 143 terminated (SIGTERM)

"Findings": something about the data is wrong. "Failed": the job could not do its work, which says
nothing about the data.
"""

from __future__ import annotations

import enum
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SHOWN_MAX = 100


class Exit(enum.IntEnum):
    OK = 0
    FINDINGS = 1
    USAGE = 2
    FAILED = 3
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


class Finding(NamedTuple):
    kind: str
    where: str
    what: str


@dataclass
class Outcome:
    """Names in `summary` include their unit; values can be JSON."""

    job: str
    summary: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    interrupted: int = 0
    """The signal that ended the job early; 0: none."""

    def found(self, shown: Iterable[Finding], counts: Mapping[str, int] | None = None) -> None:
        every = list(shown)
        self.counts += Counter(one.kind for one in every) if counts is None else Counter(counts)
        for one in every:
            if sum(other.kind == one.kind for other in self.findings) < SHOWN_MAX:
                self.findings.append(one)

    @property
    def exit(self) -> Exit:
        if self.interrupted:
            return Exit(128 + self.interrupted)
        return Exit.FINDINGS if any(self.counts.values()) else Exit.OK

    def plain(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "result": self.exit.name.lower(),
            "summary": self.summary,
            "findings_count": self.counts,
            "findings": [one._asdict() for one in self.findings],
        }
