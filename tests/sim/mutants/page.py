"""Writes docs/planted_bugs.md: `python -m tests.sim.mutants.page [RESULTS]`.

The page is made of the planted bugs themselves and of measured.json: what found each of them when
it was last searched. RESULTS, what `python -m tests.sim mutants --json` printed for some or all of
them, is taken into measured.json first. A test holds that the page is what comes out here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tests.sim.mutants import ABSENT, MUTANTS, TESTED, Mutant, TestedBug
from tests.sim.mutants.measured import MEASURED, Finding, measured
from tests.sim.mutants.sections import SECTIONS, Section
from tests.sim.mutants.tested import ROOT

PAGE = ROOT / "docs" / "planted_bugs.md"
CANON_MAX = 25
HEAD = """# Planted bugs

<!-- Written by python -m tests.sim.mutants.page; edits belong into tests/sim/mutants. -->

A simulator that finds nothing proves nothing. So the bugs that the field really had, in BookKeeper,
Pulsar, Kafka and in what runs on them, are planted in Octavo's own code, one at a time, and seeds
are run from 0 on until one fails. The seed that fails must pass without the bug. A planted bug that
is not found means that the simulator is blind there, and is mended there: no seed, fault or check
is made for one bug alone. Where the code beneath has not changed its story, the seed of the last
search finds it again, and is run first.

```sh
make mutants                              # all of them, by last time's seed where it still does
make mutants ONLY=ack-before-fsync        # one
python -m tests.sim run SEED --verbose --mutant ack-before-fsync     # how it comes about
```

Each bug is a few words of one production function, replaced in place and taken back exactly
(`tests/sim/mutants/*_bugs.py`; the story of each stands there, with the edit). An edit that no
longer fits the code is an error. CI runs those that are found fastest
(`tests/sim/test_mutants.py`) and holds all edits against the code (`tests/unit/sim`).

Of some a test is the right judge: the bug is planted, the test is run in a process of its own and
must fail; without the bug it passes (`tests/sim/mutants/tested*.py`).
"""


def taken_in(known: Mapping[str, Finding], results: Iterable[str]) -> dict[str, Finding]:
    """`known`, and what the lines of `mutants --json` say; a bug that was not found has no row."""
    found = {name: one for name, one in known.items() if name in MUTANTS or name in TESTED}
    for line in results:
        if not line.startswith("{"):
            continue
        said: dict[str, Any] = json.loads(line)
        name = said["name"]
        if name in TESTED:
            one = Finding(said["failed"]) if said["failed"] else None
        else:
            by = _property(said["caught_by"])
            one = None if said["seed"] is None else Finding(by, said["seeds"])
        found.pop(name, None)
        if one is not None:
            found[name] = one
    return {name: found[name] for name in sorted(found)}


def page(found: Mapping[str, Finding]) -> str:
    """The whole page."""
    seeds = [found[name].seeds for name in MUTANTS if name in found]
    tested = sum(name in found for name in TESTED)
    lines = [HEAD]
    lines.append(
        f"Found: {len(seeds)} of {len(MUTANTS)} by seeds, median {round(median(seeds))} seeds, at "
        f"most {max(seeds):,}; {tested} of {len(TESTED)} by tests. Seeds until found are those of "
        "the bug's last search from 0 on, the same on every machine: the last of them still finds "
        "it. `--afresh` searches anew, for an earlier one may by now.\n"
    )
    for section in SECTIONS:
        lines += _section(section, found)
    lines += ["## Does not apply yet", ""]
    lines += _table(
        ("no.", "bug", "reference", "why"),
        [(str(a.canon), a.title, a.reference, a.reason) for a in ABSENT],
    )
    lines += ["", "## What each was, and how it is planted", ""]
    for mutant in MUTANTS.values():
        lines += _story(mutant)
    for bug in TESTED.values():
        lines += _tested_story(bug)
    return "\n".join(lines)


def _section(section: Section, found: Mapping[str, Finding]) -> list[str]:
    lines = [f"## {section.title}", "", " ".join(section.intro.split()), ""]
    if section.mutants:
        by_canon = sorted(section.mutants, key=lambda m: m.canon or CANON_MAX + 1)
        lines += _table(
            ("no.", "bug", "what it breaks", "seeds", "caught by"),
            [_row(mutant, found.get(mutant.name)) for mutant in by_canon],
        )
        lines.append("")
    if section.tested:
        lines += _table(
            ("bug", "what it breaks", "found by"),
            [_tested_row(bug, found.get(bug.name)) for bug in section.tested],
        )
        lines.append("")
    return lines


def _row(mutant: Mutant, found: Finding | None) -> tuple[str, ...]:
    seeds = "not found" if found is None else f"{found.seeds:,}"
    bug = f"{mutant.title} (`{mutant.name}`)"
    return str(mutant.canon or ""), bug, mutant.breaks, seeds, "" if found is None else found.by


def _tested_row(bug: TestedBug, found: Finding | None) -> tuple[str, ...]:
    return f"{bug.title} (`{bug.name}`)", bug.breaks, f"`{found.by}`" if found else "not found"


def _tested_story(bug: TestedBug) -> list[str]:
    places = ", ".join(dict.fromkeys(f"`{edit.target}`" for edit in bug.edits))
    story = " ".join(bug.story.split())
    return [f"**{bug.title}.** {story} Planted in {places}, judged by `{bug.test}`.", ""]


def _property(failure: str) -> str:
    """The name of the property, of a line that says what failed, when and where."""
    what = failure.split(" s: ", 1)[-1]
    name = what.split(" ", 1)[0].rstrip(":")
    return name if name[:1] in "SPXCT" and any(c.isdigit() for c in name) else "an error"


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
    """Take in what was measured, and write the page."""
    results = Path(sys.argv[1]).read_text().splitlines() if len(sys.argv) > 1 else []
    found = taken_in(measured(), results)
    rows = [
        f"  {json.dumps(name)}: "
        + json.dumps({"by": one.by} | ({"seeds": one.seeds} if one.seeds else {}))
        for name, one in found.items()
    ]
    MEASURED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
