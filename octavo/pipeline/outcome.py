"""What a job ends with: a summary, findings, and the exit code that says which. Pure.

    0 ok · 1 findings · 2 usage · 3 failed · 130 interrupted (SIGINT) · 143 terminated (SIGTERM)

"Findings" means that the job did its work and something about the data is not as promised. "Failed"
means that it could not do its work, and says nothing about the data. One that was told to stop is
not done, whatever it has found by then.
"""

from __future__ import annotations

import enum
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SHOWN_MAX = 100
"""Of each kind of finding; all are counted."""


class Exit(enum.IntEnum):
    """Exit codes of every job."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    FAILED = 3
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


class Finding(NamedTuple):
    """One thing that is not as promised: which promise, where, and what was found instead."""

    kind: str
    where: str
    what: str


@dataclass
class Outcome:
    """The end of a job. Names in `summary` say their units; its values can be JSON."""

    job: str
    summary: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """By kind of finding, also of those that are not shown."""
    interrupted: int = 0
    """The signal that ended the job before it was done; 0: none did."""

    def found(self, shown: Iterable[Finding], counts: Mapping[str, int] | None = None) -> None:
        """Add findings; `counts` when more were found than are shown."""
        every = list(shown)
        self.counts += Counter(one.kind for one in every) if counts is None else Counter(counts)
        for one in every:
            if sum(other.kind == one.kind for other in self.findings) < SHOWN_MAX:
                self.findings.append(one)

    @property
    def exit(self) -> Exit:
        """OK or FINDINGS, or how it was interrupted."""
        if self.interrupted:
            return Exit(128 + self.interrupted)
        return Exit.FINDINGS if any(self.counts.values()) else Exit.OK

    def plain(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "job": self.job,
            "result": self.exit.name.lower(),
            "summary": self.summary,
            "findings_count": self.counts,
            "findings": [one._asdict() for one in self.findings],
        }
