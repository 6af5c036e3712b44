"""Paths of the metadata tree: `/a/b`, checked here so that no store has to check them.

Our own code makes paths from names that were validated at the edge. So a bad path is a mistake in
the program and raises an AssertionError, not an answer to a user.
"""

from __future__ import annotations

import re

_STEP = r"(?!\.\.?(?:/|\Z))[ -.0-~\xa0-\ud7ff]+"
"""No slash, no control characters, only characters that every store can write; not `.` or `..`."""
_SAFE = re.compile(_STEP)
_PATH = re.compile(rf"(?:/{_STEP})+")


def is_safe_name(name: str) -> bool:
    """Whether `name` can be a step of a path in every store."""
    return _SAFE.fullmatch(name) is not None


def check_path(path: str) -> str:
    """Return `path`; it is absolute, without empty, `.` or `..` steps or control characters."""
    assert _PATH.fullmatch(path), f"metadata path {path!r} is malformed or not absolute"
    return path


def check_folder(path: str) -> str:
    """Return `path`, of which only the children matter: `/` is allowed."""
    return path if path == "/" else check_path(path)


def join(parent: str, *names: str) -> str:
    """Return `parent` with `names` below it, each of which must be a single safe step."""
    for name in names:
        assert is_safe_name(name), f"{name!r} cannot be a name in a metadata path"
    return "/".join((parent.rstrip("/"), *names))


def parent_of(path: str) -> str:
    """Return the path one step up; `/` above the first step."""
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    """Return the last step."""
    return path.rpartition("/")[2]


def parents_of(path: str) -> list[str]:
    """Return all paths above `path` from the outermost inwards, without `/`."""
    steps = path.split("/")[1:-1]
    return ["/" + "/".join(steps[: count + 1]) for count in range(len(steps))]
