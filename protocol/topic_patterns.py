"""Topics by name or by pattern: `orders`, `ns/orders`, `ns/orders-*`. Pure.

`*` stands for any characters or none, `?` for one. A pattern matches no topic for dead letters or
retries, by use or by its ending `-dlq` or `-retry`, unless it has that ending: a subscription to
`orders-*` must not make its dead letters dead letters again.
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
_OF_LETTERS = tuple(f"-{suffix}" for suffix in (DEAD_LETTER_SUFFIX, RETRY_SUFFIX))


class InvalidPattern(ValueError):
    pass


class TopicPattern(NamedTuple):
    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """Parse `topic` or `namespace/topic`. Raises `InvalidPattern`."""
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
        return _WILD.search(self.topic) is not None

    def matches(self, topic: str, *, has_letters: bool = False) -> bool:
        """Whether the pattern matches the topic; takes time linear in the name's length.

        `has_letters`: the topic gets dead letters or retries.
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

    Bit n is set while the pattern's first n characters, without stars, match what was read. All
    states advance at once. Backtracking took 20 seconds for 20 patterns and names; as a regular
    expression `*a*a*a*…` takes exponential time.
    """

    def __init__(self, pattern: str) -> None:
        assert len(pattern) <= NAME_CHARS_MAX
        self._any = 0
        self._stars = 0
        self._places: dict[str, int] = {}
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
