"""Which messages of a topic belong to a subscription: by header and by key. Pure.

Brokers address a retry to a subscription by a header; only its last occurrence counts, because a
publisher or an earlier copy may have set others.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.broker.subscriptions.dead_letters import RETRY_FOR
from octavo.broker.types import SubscriptionSettings

ANY_VALUE = "*"
Headers = Sequence[tuple[str, bytes | None]]


class Filter:
    def __init__(self, settings: SubscriptionSettings) -> None:
        self._headers = [
            (name, None if values == (ANY_VALUE,) else frozenset(v.encode() for v in values))
            for name, values in settings.filter_headers
        ]
        prefix = settings.filter_key_prefix
        self._prefix = None if prefix is None else prefix.encode()

    @property
    def passes_all(self) -> bool:
        return not self._headers and self._prefix is None

    def passes(self, key: bytes | None, headers: Headers) -> bool:
        if self._prefix is not None and (key is None or not key.startswith(self._prefix)):
            return False
        return all(_has(headers, name, values) for name, values in self._headers)


def _has(headers: Headers, name: str, values: frozenset[bytes] | None) -> bool:
    if name == RETRY_FOR:
        headers = [header for header in headers if header[0] == name][-1:]
    return any(
        found == name and (values is None or (value or b"") in values) for found, value in headers
    )
