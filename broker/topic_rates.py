"""Limit the rates of publishing to a topic and of reading from it. Pure.

Each owner counts for itself, by buckets of security/limits.py.
"""

from __future__ import annotations

from octavo.metadata.topic_settings import Policies
from octavo.security.limits import GO_ON, SUBJECTS_KEPT, Bucket, Wait

INTO = ("publish_bytes", "publish_messages")
OUT_OF = ("dispatch_bytes", "dispatch_messages")
_Bounds = tuple[int | None, ...]


def has_rates(policies: Policies) -> bool:
    # Called for every message: a generator would cost nine calls.
    return not (
        policies.publish_bytes is None
        and policies.publish_messages is None
        and policies.dispatch_bytes is None
        and policies.dispatch_messages is None
    )


class Rates:
    def __init__(self, topics_kept: int = SUBJECTS_KEPT) -> None:
        self._kept = topics_kept
        self._topics: dict[str, tuple[_Bounds, dict[str, Bucket]]] = {}

    def wait(self, topic: str, policies: Policies, names: tuple[str, ...], now_s: float) -> Wait:
        found = GO_ON
        for name, bucket in self._of(topic, policies, now_s).items():
            wait_s = bucket.wait_s(0, now_s) if name in names else 0.0
            if wait_s > found.wait_s:
                found = Wait(wait_s, f"topic:{topic}", name, getattr(policies, name))
        return found

    def charge(
        self,
        topic: str,
        policies: Policies,
        names: tuple[str, ...],
        size: int,
        messages: int,
        now_s: float,
    ) -> None:
        buckets = self._of(topic, policies, now_s)
        for name, amount in zip(names, (size, messages), strict=True):
            if amount and (bucket := buckets.get(name)) is not None:
                bucket.take(amount, now_s)

    def give_back(
        self, topic: str, policies: Policies, size: int, messages: int, now_s: float
    ) -> None:
        """Return what a publish was charged that stored nothing."""
        buckets = self._of(topic, policies, now_s)
        for name, amount in zip(INTO, (size, messages), strict=True):
            if (bucket := buckets.get(name)) is not None:
                bucket.give_back(amount)

    def _of(self, topic: str, policies: Policies, now_s: float) -> dict[str, Bucket]:
        bounds = tuple(getattr(policies, name) for name in (*INTO, *OUT_OF))
        held = self._topics.pop(topic, None)
        if held is None or held[0] != bounds:
            named = zip((*INTO, *OUT_OF), bounds, strict=True)
            held = (bounds, {name: Bucket(most, now_s) for name, most in named if most is not None})
            if len(self._topics) >= self._kept:
                del self._topics[next(iter(self._topics))]
        self._topics[topic] = held
        return held[1]
