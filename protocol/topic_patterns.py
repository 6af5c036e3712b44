"""Topics by name or by pattern: `orders`, `ns/orders`, `ns/orders-*`. Pure.

A pattern is a topic's name with `*` (any characters, also none) or `?` (one) in it; it never
reaches beyond its namespace. Brokers and clients go by the same rule.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from octavo.protocol.names import NAME_CHARS_MAX, NAME_RULE, is_name

_WILD = re.compile(r"[*?]")
_DEFAULT_NAMESPACE = "public"


class InvalidPattern(ValueError):
    """Text that names no topics; the message says what would."""


class TopicPattern(NamedTuple):
    """A namespace, and a topic's name or a pattern of names."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """`topic` or `namespace/topic`, with `*` and `?` in the topic. Raises `InvalidPattern`."""
        namespace, slash, topic = text.rpartition("/")
        found = cls(namespace if slash else _DEFAULT_NAMESPACE, topic)
        if not is_name(found.namespace):
            raise InvalidPattern(f"topics {text[:60]!r}: the namespace: {NAME_RULE}")
        if not is_name(topic) and not (found.is_wild and is_name(_WILD.sub("x", topic))):
            raise InvalidPattern(
                f"topics {text[:60]!r}: write topic, namespace/topic, or a pattern such as "
                f"namespace/orders-*; {NAME_RULE}"
            )
        return found

    @property
    def is_wild(self) -> bool:
        """Whether it may match several topics, and some that are not there yet."""
        return _WILD.search(self.topic) is not None

    def matches(self, topic: str) -> bool:
        """Whether it means the topic of that name in its namespace. Linear in the name's length
        times the pattern's, whatever the pattern is."""
        return _matches(self.topic, topic)


def _matches(pattern: str, name: str) -> bool:
    # No regular expression: of `*a*a*a*…` one would be exponential, and anybody may ask.
    assert len(pattern) <= NAME_CHARS_MAX
    at = place = mark = 0
    star = -1
    while at < len(name):
        if place < len(pattern) and pattern[place] in ("?", name[at]) and pattern[place] != "*":
            at, place = at + 1, place + 1
        elif place < len(pattern) and pattern[place] == "*":
            star, mark = place, at
            place += 1
        elif star >= 0:
            mark += 1
            at, place = mark, star + 1
        else:
            return False
    return all(rest == "*" for rest in pattern[place:])
