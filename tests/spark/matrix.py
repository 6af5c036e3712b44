"""Runs the Spark tests on each version of Spark: `make spark-matrix`, or `python -m
tests.spark.matrix [--whole] [VERSION or `oldest` …]`. Each version gets a virtual environment in
`.venv/spark/`. `--whole` runs all tests of the folder."""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pyspark

VERSIONS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
_ROOT = Path(__file__).parents[2]
_SHORT = "tests/spark/test_versions.py"


def python_with(version: str) -> Path:
    if version == pyspark.__version__:
        return Path(sys.executable)
    place = _ROOT / ".venv" / "spark" / version
    python = place / "bin" / "python"
    whole = place / "installed"
    if not whole.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", f"pyspark=={version}"]
        subprocess.run(pip, check=True)
        # A folder named in a .pth file comes behind this environment's own packages.
        ours = place.joinpath(*Path(sysconfig.get_path("purelib")).parts[-3:], "ours.pth")
        ours.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        whole.touch()
    return python


def run(version: str, what: str) -> tuple[int, float]:
    python = python_with(version)
    began = time.monotonic()
    tests = [str(python), "-m", "pytest", "-n0", "-p", "no:cacheprovider", what]
    ended = subprocess.run(tests, cwd=_ROOT, check=False)
    return ended.returncode, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the Spark tests on each version.")
    parser.add_argument("versions", nargs="*", default=list(VERSIONS))
    parser.add_argument("--whole", action="store_true", help="all Spark tests on each")
    given = parser.parse_args()
    what = "tests/spark" if given.whole else _SHORT
    ended = {}
    for asked in given.versions:
        version = VERSIONS[0] if asked == "oldest" else asked
        print(f"Spark {version}", flush=True)
        ended[version] = run(version, what)
    for version, (code, took_s) in ended.items():
        print(f"Spark {version}: {'FAILED' if code else 'passed'}, {took_s:.0f} s")
    return int(any(code for code, _ in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
