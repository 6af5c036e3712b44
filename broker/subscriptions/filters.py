"""Which messages of a topic a subscription is of: by header and by key. Pure.

Each header that is named must be there with one of its values, and the key must begin as asked.
Of the header by which brokers address a retry to one subscription only the last counts: a message
is one subscription's, whatever its publisher or an earlier life has put before it.
That is all: what a filter takes to decide is bounded by what it says, and nothing is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.broker.subscriptions.dead_letters import RETRY_FOR
from octavo.broker.types import SubscriptionSettings

ANY_VALUE = "*"
"""In place of values: the header is there, with whatever value."""
Headers = Sequence[tuple[str, bytes | None]]


class Filter:
    """Of one subscription."""

    def __init__(self, settings: SubscriptionSettings) -> None:
        self._headers = [
            (name, None if values == (ANY_VALUE,) else frozenset(v.encode() for v in values))
            for name, values in settings.filter_headers
        ]
        prefix = settings.filter_key_prefix
        self._prefix = None if prefix is None else prefix.encode()

    @property
    def passes_all(self) -> bool:
        """There is no filter."""
        return not self._headers and self._prefix is None

    def passes(self, key: bytes | None, headers: Headers) -> bool:
        """Whether the message is the subscription's."""
        if self._prefix is not None and (key is None or not key.startswith(self._prefix)):
            return False
        return all(_has(headers, name, values) for name, values in self._headers)


def _has(headers: Headers, name: str, values: frozenset[bytes] | None) -> bool:
    if name == RETRY_FOR:
        headers = [header for header in headers if header[0] == name][-1:]
    return any(
        found == name and (values is None or (value or b"") in values) for found, value in headers
    )
