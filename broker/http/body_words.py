"""Say in plain words why a JSON body does not fit: `retention must be an object, not text`. Pure.

The decoder's errors name Python's types and a JSON path; a person at the command line knows
neither.
"""

from __future__ import annotations

import re

_EXPECTED = re.compile(
    r"Expected `(?P<wanted>[^`]*)`(?P<bound>[^,]*?)(, got `(?P<got>[^`]*)`)?"
    r"( - at `(?P<path>[^`]*)`)?"
)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`( - at `(?P<path>[^`]*)`)?")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`( - at `(?P<path>[^`]*)`)?")
_KINDS = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}


def in_words(error: str) -> str:
    """Return the decoder's error in plain words; unchanged if its form is unknown."""
    if found := _EXPECTED.fullmatch(error):
        wanted = " or ".join(_kind(one) for one in found["wanted"].split(" | "))
        bound = found["bound"].strip().replace("of length", "of a length")
        got = f", not {_kind(found['got'])}" if found["got"] else ""
        return f"{_place(found['path'])} must be {wanted}{' ' + bound if bound else ''}{got}"
    if found := _MISSING.fullmatch(error):
        return f"{_place(found['path'])} lacks `{found['name']}`"
    if found := _UNKNOWN.fullmatch(error):
        return f"{_place(found['path'])} has a field `{found['name']}`, which is not known"
    return error


def _kind(name: str) -> str:
    return _KINDS.get(name, name)


def _place(path: str | None) -> str:
    """Return `retention.time` for `$.retention.time`; `the body` without a path."""
    inner = (path or "").removeprefix("$").removeprefix(".")
    return inner or "the body"
