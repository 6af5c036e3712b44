"""The bill of materials: cyclonedx-py's, of an environment with Octavo only."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Bill = dict[str, Any]


def install(folder: Path) -> Path:
    """Install Octavo with its dependencies in a new environment; return its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    _run("pip", "--python", str(python), "install", "--quiet", str(ROOT))
    return python


def list_of(python: Path) -> Bill:
    """List the installed packages, by a tool that knows the format and checks its output."""
    found = _run(
        "cyclonedx_py", "environment", str(python),
        "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible",
    )  # fmt: skip
    bill: Bill = json.loads(found)
    return bill


def lacking(bill: Bill, python: Path) -> list[str]:
    """Return packages that are missing in the list, with their versions."""
    listed = {_plain(one["name"]): one.get("version") for one in bill["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {_plain(re.split(r"[<>=\[; ]", one)[0]) for one in project["dependencies"]}
    problems = [f"{name}, which pyproject.toml names" for name in sorted(named - listed.keys())]
    for name, version in sorted(installed(python).items()):
        if name != _plain(project["name"]) and listed.get(name) != version:
            problems.append(f"{name} {version}, which is installed")
    problems += [f"the version of {name}" for name, version in listed.items() if not version]
    return problems


def installed(python: Path) -> dict[str, str]:
    """Return every package of an environment, with its version."""
    if python == Path(sys.executable):
        folder = sysconfig.get_path("purelib")
    else:
        (folder,) = map(str, python.parents[1].glob("lib/python3*/site-packages"))
    return {_plain(one.metadata["Name"]): one.version for one in distributions(path=[folder])}


def _plain(name: str) -> str:
    """Return a package's name as its index has it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(module: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{module} {words[0]} failed:\n{done.stderr.strip()}")
    return done.stdout
