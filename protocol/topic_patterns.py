"""Topics by name or by pattern: `orders`, `ns/orders`, `ns/orders-*`. Pure.

A pattern is a topic's name with `*` (any characters, also none) or `?` (one) in it; it matches only
in its own namespace. A subscription to `orders-*` must not receive its own dead letters, or it
would make dead letters of them again. So a pattern does not match topics of dead letters or
retries: neither those that a subscription sends them to, nor names that end in `-dlq` or `-retry`.
Only a pattern with that ending matches names with that ending. Brokers and clients use the same
rule.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from octavo.protocol.names import NAME_CHARS_MAX, NAME_RULE, is_name

_WILD = re.compile(r"[*?]")
_DEFAULT_NAMESPACE = "public"
DEAD_LETTER_SUFFIX = "dlq"
RETRY_SUFFIX = "retry"
"""The endings of topics that brokers make for dead letters and retries."""
_OF_LETTERS = tuple(f"-{suffix}" for suffix in (DEAD_LETTER_SUFFIX, RETRY_SUFFIX))


class InvalidPattern(ValueError):
    """Text that is neither a topic nor a pattern; the message says what would be right."""


class TopicPattern(NamedTuple):
    """A namespace, and a topic's name or a pattern of names."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """Parse `topic` or `namespace/topic`, with `*` and `?` in the topic. Raises
        `InvalidPattern`."""
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
        """Whether it may match several topics, also topics that do not exist yet."""
        return _WILD.search(self.topic) is not None

    def matches(self, topic: str, *, has_letters: bool = False) -> bool:
        """Whether it matches the topic of that name in its namespace.

        The time is linear in the name's length, whatever the pattern is. `has_letters`:
        subscriptions send dead letters or retries to the topic.
        """
        if self.is_wild and topic.endswith(_OF_LETTERS):
            suffix = topic[topic.rindex("-") :]
            if not self.topic.endswith(suffix):
                return False
        elif self.is_wild and has_letters:
            return False
        return _compiled(self.topic).matches(topic)


class _Compiled:
    """A pattern as a state machine; its states are the bits of a number.

    Bit n is set when the first n characters of the pattern, without its stars, match what was read.
    All states advance at once, so a name takes a step for each of its characters. Backtracking at
    each star took 20 seconds for 20 patterns and names, and as a regular expression `*a*a*a*…`
    would take exponential time.
    """

    def __init__(self, pattern: str) -> None:
        assert len(pattern) <= NAME_CHARS_MAX
        self._any = 0
        """Bits of the places that match any character."""
        self._stars = 0
        """Bits of the places where a state may stay."""
        self._places: dict[str, int] = {}
        """By character, the bits of the places that match it."""
        length = 0
        for one in pattern:
            if one == "*":
                self._stars |= 1 << length
                continue
            if one == "?":
                self._any |= 1 << length
            else:
                self._places[one] = self._places.get(one, 0) | 1 << length
            length += 1
        self._end = 1 << length
        self._begins = re.split(r"[*?]", pattern, maxsplit=1)[0]

    def matches(self, name: str) -> bool:
        if not name.startswith(self._begins):
            return False
        states, places, anything, stars = 1, self._places, self._any, self._stars
        for one in name:
            states = (states & (places.get(one, 0) | anything)) << 1 | states & stars
            if not states:
                return False
        return bool(states & self._end)


_compiled = lru_cache(maxsize=1_024)(_Compiled)
