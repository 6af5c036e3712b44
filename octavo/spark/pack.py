"""Pack Octavo into a zip for Spark's `--py-files`: `python -m octavo.spark.pack octavo.zip`.

It holds no dependencies: Python cannot import native code from a zip. Install them for the
executors' Python; `--requirements` prints them for pip. The same sources give the same zip.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

PACKAGES = ("octavo", "pyspark_octavo")
_SINCE_DOS = (1980, 1, 1, 0, 0, 0)


def pack(target: Path) -> int:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    count = 0
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, path in _sources():
                packed.writestr(zipfile.ZipInfo(name, _SINCE_DOS), path.read_bytes())
                count += 1
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return count


def requirements() -> list[str]:
    found = metadata.requires("octavo") or []
    return [one for one in found if "extra ==" not in one] + [
        re.sub(r"\s*;.*", "", one)
        for one in found
        if re.search(r"extra == ['\"]spark['\"]", one) and one.startswith("pyarrow")
    ]


def _sources() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        found = util.find_spec(package)
        assert found is not None
        assert found.submodule_search_locations is not None, "each of them is a package"
        folder = Path(found.submodule_search_locations[0])
        # In a source checkout the packages are symbolic links, which `rglob` does not follow.
        walked = os.walk(folder, followlinks=True)
        for path in sorted(Path(inside, name) for inside, _, files in walked for name in files):
            if path.suffix != ".pyc":
                yield f"{package}/{path.relative_to(folder).as_posix()}", path


def main() -> int:
    parser = argparse.ArgumentParser(prog="octavo.spark.pack", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=Path("octavo.zip"))
    parser.add_argument("--requirements", action="store_true", help="print them, write nothing")
    given = parser.parse_args()
    if given.requirements:
        sys.stdout.write("".join(f"{one}\n" for one in requirements()))
        return 0
    try:
        count = pack(given.file)
    except OSError as error:
        sys.stderr.write(f"{given.file} cannot be written: {error}\n")
        return 3
    sys.stdout.write(f"{given.file}: {count} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
