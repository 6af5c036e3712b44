"""Make text safe for a terminal: users' texts may contain escapes that it would obey."""

from __future__ import annotations

import re

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
"""Control characters and direction marks, except line ends and tabs."""


def visible(text: str) -> str:
    r"""Spell out the characters that a terminal would obey: `\x1b`, `\u202e`."""
    return _OBEYED.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
