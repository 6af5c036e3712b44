"""Writes docs/planted_bugs.md: `python -m tests.sim.mutants.page [RESULTS]`.

The page names each planted bug, and what found it in its last search (measured.json). RESULTS is
the output of `python -m tests.sim mutants --json`, which is merged into measured.json first. A test
compares the page with what this module writes.
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

<!-- Written by python -m tests.sim.mutants.page; edit tests/sim/mutants instead. -->

A simulator that finds nothing proves nothing. So bugs that BookKeeper, Pulsar, Kafka and systems on
top of them had, and mistakes that a reviewer may overlook, are planted in Octavo's own code, one at
a time; a seed or a test must then fail.

```sh
make mutants                              # all of them
make mutants ONLY=ack-before-fsync        # one of them
python -m tests.sim run SEED --verbose --mutant ack-before-fsync     # see how it does harm
```

A bug is an edit of a few words in one production function; edits, titles and stories are in
`tests/sim/mutants/*_bugs.py`. CI runs the bugs that are found fastest (`tests/sim/test_mutants.py`)
and checks that all edits still fit the code (`tests/unit/sim`).

*Seeds*: the number of seeds until the last search found the bug, from 0 on; the same on every
machine. *Caught by*: a property of [properties.md](properties.md). Tests are below `tests/`.
"""


def taken_in(known: Mapping[str, Finding], results: Iterable[str]) -> dict[str, Finding]:
    """Merge the lines of `mutants --json` into `known`; a bug that was not found has no row."""
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
    """Return the whole page."""
    seeds = [found[name].seeds for name in MUTANTS if name in found]
    tested = sum(name in found for name in TESTED)
    lines = [HEAD]
    lines.append(
        f"Found: {len(seeds)} of {len(MUTANTS)} by seeds, median {round(median(seeds))} seeds, at "
        f"most {max(seeds):,}; {tested} of {len(TESTED)} by tests.\n"
    )
    for section in SECTIONS:
        lines += _section(section, found)
    lines += ["## Does not apply yet", ""]
    lines += _table(
        ("no.", "bug", "reference", "reason"),
        [(str(a.canon), a.title, a.reference, a.reason) for a in ABSENT],
    )
    return "\n".join(lines) + "\n"


def _section(section: Section, found: Mapping[str, Finding]) -> list[str]:
    lines = [f"## {section.title}", "", " ".join(section.intro.split()), ""]
    if section.mutants:
        by_canon = sorted(section.mutants, key=lambda m: m.canon or CANON_MAX + 1)
        lines += _table(
            ("bug", "name", "caught by", "seeds"),
            [_row(mutant, found.get(mutant.name)) for mutant in by_canon],
        )
        lines.append("")
    if section.tested:
        lines += _table(("test", "bugs"), _tested_rows(section.tested, found))
        lines.append("")
    return lines


def _row(mutant: Mutant, found: Finding | None) -> tuple[str, ...]:
    number = f"{mutant.canon}. " if mutant.canon else ""
    seeds = "not found" if found is None else f"{found.seeds:,}"
    return number + mutant.title, f"`{mutant.name}`", "" if found is None else found.by, seeds


def _tested_rows(bugs: Iterable[TestedBug], found: Mapping[str, Finding]) -> list[tuple[str, ...]]:
    """Return a row for each file of tests; measured.json names the test that failed first."""
    rows: dict[str, list[str]] = {}
    for bug in bugs:
        test = f"`{bug.test.split('::')[0]}`" if bug.name in found else "not found"
        rows.setdefault(test, []).append(f"`{bug.name}`")
    return [(test, ", ".join(names)) for test, names in rows.items()]


def _property(failure: str) -> str:
    """Return the name of the property from a line that says what failed, when and where."""
    what = failure.split(" s: ", 1)[-1]
    name = what.split(" ", 1)[0].rstrip(":")
    return name if name[:1] in "SPXCT" and any(c.isdigit() for c in name) else "an error"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    rule = tuple("---" for _ in head)
    return [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in r) + " |"
        for r in (head, rule, *rows)
    ]


def main() -> None:
    """Merge the results, and write the page."""
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
