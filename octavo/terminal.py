"""Make text safe to be shown on a terminal, which obeys some characters.

Names, keys, values, headers and errors of users may hold escapes that move the cursor, change the
title, write the clipboard, or turn the direction of writing.
"""

from __future__ import annotations

import re

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
"""Controls and marks of direction; line ends and tabs are not among them."""


def visible(text: str) -> str:
    """`text` with everything that a terminal would obey spelled out: `\\x1b`, `\\u202e`."""
    return _OBEYED.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
