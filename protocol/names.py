"""The rule for names of namespaces, topics and subscriptions."""

from __future__ import annotations

import re

from octavo.protocol.codes import KafkaCode, OctavoError

NAME_CHARS_MAX = 249
NAME_PATTERN = rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}"
NOT_NAMES = (".", "..")
"""These names would climb in a path."""
NAME_RULE = f"a name has 1 to {NAME_CHARS_MAX} of A-Z a-z 0-9 . _ - and is not '.' or '..'"

_NAME_SHOWN_CHARS = 60
_NAME = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and text not in NOT_NAMES


class InvalidName(OctavoError):
    name = "invalid-name"
    http_status = 400
    kafka = KafkaCode.INVALID_TOPIC


def checked_name(what: str, text: str) -> str:
    """Return the name if it is valid; `what` says what it is for. Raises `InvalidName`."""
    if is_name(text):
        return text
    shown = text if len(text) <= _NAME_SHOWN_CHARS else text[:_NAME_SHOWN_CHARS] + "…"
    raise InvalidName(f"{what} name {shown!r} ({len(text)} characters) is not allowed: {NAME_RULE}")
