"""Paths of the metadata tree, `/a/b`.

Names were validated at the edge, so a bad path is a mistake in the program: an AssertionError.
"""

from __future__ import annotations

import re

_STEP = r"(?!\.\.?(?:/|\Z))[ -.0-~\xa0-\ud7ff]+"
"""Characters that every store can write; not `.` or `..`."""
_SAFE = re.compile(_STEP)
_PATH = re.compile(rf"(?:/{_STEP})+")


def is_safe_name(name: str) -> bool:
    return _SAFE.fullmatch(name) is not None


def check_path(path: str) -> str:
    assert _PATH.fullmatch(path), f"metadata path {path!r} is malformed or not absolute"
    return path


def check_folder(path: str) -> str:
    """Check as `check_path`; `/` is allowed."""
    return path if path == "/" else check_path(path)


def join(parent: str, *names: str) -> str:
    for name in names:
        assert is_safe_name(name), f"{name!r} cannot be a name in a metadata path"
    return "/".join((parent.rstrip("/"), *names))


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def parents_of(path: str) -> list[str]:
    """Return the outermost path first, without `/`."""
    steps = path.split("/")[1:-1]
    return ["/" + "/".join(steps[: count + 1]) for count in range(len(steps))]
