"""Decides by a topic's effective policies. Pure.

metadata/topic_settings.py declares the policies, their bounds and their precedence.
"""

from __future__ import annotations

from typing import Literal, cast

from octavo.metadata.topic_settings import Policies


def why_never_due(due_ms: int | None, now_ms: int, policies: Policies) -> str | None:
    """Return why a message would expire before it is due; None if it will be delivered.

    The time to live counts from the storing of a message, due or not. Both times are milliseconds
    since 1970; a message without a due time is due at once.
    """
    ttl_ms = policies.ttl_ms
    if due_ms is None or ttl_ms is None or due_ms - now_ms < ttl_ms:
        return None
    return (
        f"it is due in {(due_ms - now_ms) / 1000:g} s, and the topic's ttl acks what was stored "
        f"{ttl_ms / 1000:g} s ago: nothing would ever be delivered. Deliver it sooner, or have the "
        "topic say a longer ttl, or off"
    )


def is_deferred(policies: Policies) -> bool:
    """Whether entries are synced after their ack."""
    return policies.durability == "deferred"


def has_append_times(policies: Policies) -> bool:
    """Whether messages get the time at which they are stored instead of their producer's time."""
    return policies.message_time == "append"


def backlog_policy(policies: Policies) -> Literal["hold", "reject", "evict"]:
    return cast(Literal["hold", "reject", "evict"], policies.backlog_policy or "hold")
