"""Writes docs/planted_bugs.md: `python -m tests.sim.mutants.page RESULTS > docs/planted_bugs.md`.

RESULTS is what `python -m tests.sim mutants --json` printed, one line for each planted bug.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from tests.sim.mutants import ABSENT, MUTANTS, TESTED, Mutant, TestedBug
from tests.sim.mutants.search import Found
from tests.sim.mutants.tested import Verdict

CANON_MAX = 25
HEAD = """# Planted bugs

A simulator that finds nothing proves nothing. So the bugs that the field really had, in BookKeeper,
Pulsar, Kafka and in what runs on them, are planted in Octavo's own code, one at a time, and seeds
are run from 0 on until one fails. The seed that fails must pass without the bug. A planted bug that
is not found means that the simulator is blind there, and is mended there: no seed, fault or check
is made for one bug alone.

```sh
make mutants                              # all of them
make mutants ONLY=ack-before-fsync        # one
python -m tests.sim run SEED --verbose --mutant ack-before-fsync     # how it comes about
```

Each bug is a few words of one production function, replaced in place and taken back exactly
(`tests/sim/mutants/*_bugs.py`; the story of each stands there, with the edit). An edit that no
longer fits the code is an error. CI runs those that are found fastest
(`tests/sim/test_mutants.py`) and holds all edits against the code (`tests/unit/sim`).
Numbers are those of the canon of 25; bugs without a number come from the ledger protocol's own list
and from BookKeeper's newest, or are none of the field's: what a reviewer may overlook, at least one
for each module that decides. A second table has those of which a test is the right judge: the bug
is planted, the named tests are run, one of them must fail; without it they pass.
"""


def page(results: Mapping[str, Found], verdicts: Mapping[str, Verdict]) -> str:
    """The whole page."""
    found = [r for r in results.values() if r.proven]
    lines = [HEAD]
    lines.append(
        f"Measured: {len(found)} of {len(MUTANTS)} found, median "
        f"{round(median(r.seeds for r in found))} seeds, at most {max(r.seeds for r in found):,}. "
        "Seeds until found are exact and the same on every machine; they change whenever the "
        "simulator or the code beneath it does.\n"
    )
    rows = [(m.canon or CANON_MAX + 1, _row(m, results.get(m.name))) for m in MUTANTS.values()]
    rows += [(a.canon, (str(a.canon), a.title, "", "does not apply yet", "")) for a in ABSENT]
    lines += _table(
        ("no.", "bug", "what it breaks", "seeds", "caught by"),
        [row for _, row in sorted(rows, key=lambda numbered: numbered[0])],
    )
    told = sum(bool(one.failed) for one in verdicts.values())
    lines += ["", "## Found by tests", "", f"Measured: {told} of {len(TESTED)} found.", ""]
    lines += _table(
        ("bug", "what it breaks", "found by"),
        [_tested_row(bug, verdicts.get(bug.name)) for bug in TESTED.values()],
    )
    lines += ["", "## What each was, and how it is planted", ""]
    for mutant in MUTANTS.values():
        lines += _story(mutant)
    for bug in TESTED.values():
        lines += _tested_story(bug)
    lines += ["## Does not apply yet", ""]
    lines += _table(
        ("no.", "bug", "reference", "why"),
        [(str(a.canon), a.title, a.reference, a.reason) for a in ABSENT],
    )
    return "\n".join(lines) + "\n"


def _row(mutant: Mutant, found: Found | None) -> tuple[str, ...]:
    seeds = "not measured" if found is None else "not found" if found.seed is None else ""
    caught_by = ""
    if found is not None and found.seed is not None:
        seeds = f"{found.seeds:,}"
        caught_by = _property(found.caught_by)
    bug = f"{mutant.title} (`{mutant.name}`)"
    return str(mutant.canon or ""), bug, mutant.breaks, seeds, caught_by


def _tested_row(bug: TestedBug, verdict: Verdict | None) -> tuple[str, ...]:
    found = "not measured" if verdict is None else f"`{verdict.failed}`" if verdict.failed else ""
    return f"{bug.title} (`{bug.name}`)", bug.breaks, found or "not found"


def _tested_story(bug: TestedBug) -> list[str]:
    places = ", ".join(dict.fromkeys(f"`{edit.target}`" for edit in bug.edits))
    story = " ".join(bug.story.split())
    return [f"**{bug.title}.** {story} Planted in {places}, judged by `{bug.test}`.", ""]


def _property(failure: str) -> str:
    """The name of the property, of a line that says what failed, when and where."""
    what = failure.split(" s: ", 1)[-1]
    name = what.split(" ", 1)[0].rstrip(":")
    return name if name[:1] in "SPCT" and any(c.isdigit() for c in name) else "an error"


def _story(mutant: Mutant) -> list[str]:
    number = f"{mutant.canon}. " if mutant.canon else ""
    places = ", ".join(dict.fromkeys(f"`{edit.target}`" for edit in mutant.edits))
    return [
        f"**{number}{mutant.title}** ({mutant.reference}). {' '.join(mutant.story.split())} "
        f"Planted in {places}. Comes to light with {mutant.found_by}.",
        "",
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    rule = tuple("---" for _ in head)
    return [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in r) + " |"
        for r in (head, rule, *rows)
    ]


def main() -> None:
    """Print the page."""
    results, verdicts = {}, {}
    for line in Path(sys.argv[1]).read_text().splitlines():
        if line.startswith("{"):
            fields = json.loads(line)
            if fields["name"] in TESTED:
                verdicts[fields["name"]] = Verdict(**fields)
                continue
            results[fields["name"]] = Found(**{**fields, "unclean": tuple(fields["unclean"])})
    print(page(results, verdicts), end="")


if __name__ == "__main__":
    main()
