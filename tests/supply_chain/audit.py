"""Asks pip-audit about a bill of materials, and separates findings from missing answers.

pip-audit also says "No known vulnerabilities found" about packages that its database did not know,
so those are counted here: an index without advisories must not make a list look clean.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ASKED_S = 300


class Asked(NamedTuple):
    """The answer of pip-audit."""

    packages: list[dict[str, Any]]
    """As pip-audit writes them: `name`, `version`, `vulns`, or `skip_reason`."""
    failed: str
    """Why there is no answer at all; empty when there is one."""


class Verdict(NamedTuple):
    """The verdict, for people and for CI."""

    text: str
    known_bad: bool
    unknown: bool
    """Some packages are unknown to the database."""


def ask(bill: dict[str, Any], *options: str) -> Asked:
    """Ask about every package of the list. `options` are pip-audit's."""
    pins = [f"{one['name']}=={one['version']}\n" for one in bill["components"]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pins.txt"
        file.write_text("".join(pins))
        try:
            done = subprocess.run(
                [
                    sys.executable, "-m", "pip_audit", "--requirement", str(file), "--no-deps",
                    "--disable-pip", "--format", "json", "--progress-spinner", "off", *options,
                ],
                capture_output=True, text=True, check=False, timeout=ASKED_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Asked([], f"no answer within {ASKED_S} s")
    try:
        return Asked(json.loads(done.stdout)["dependencies"], "")
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines()
        return Asked([], lines[-1] if lines else f"exit code {done.returncode}")


def verdict(asked: Asked) -> Verdict:
    """Return the verdict on an answer."""
    skipped = [one["name"] for one in asked.packages if "skip_reason" in one]
    bad = [one for one in asked.packages if one.get("vulns")]
    judged = len(asked.packages) - len(skipped)
    if not judged:
        why = asked.failed or "it knows none of these packages"
        return Verdict(f"NOT AUDITED: the advisory database was not in reach ({why})", False, True)
    lines = [
        f"{one['name']} {one['version']}: {vuln['id']}"
        f"{' ' + ', '.join(vuln['aliases']) if vuln.get('aliases') else ''}, mended in "
        f"{', '.join(vuln['fix_versions']) or 'no version yet'}"
        for one in bad
        for vuln in one["vulns"]
    ]
    lines.append(f"{judged} packages asked about, {len(bad)} with known vulnerabilities")
    if skipped:
        lines.append(f"NOT AUDITED, unknown to the database: {', '.join(skipped)}")
    return Verdict("\n".join(lines), bool(bad), bool(skipped))
