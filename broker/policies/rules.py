"""Decide by the policies that hold for a topic. Pure.

metadata/topic_settings.py declares the policies, their bounds and their precedence.
"""

from __future__ import annotations

from typing import Literal, cast

from octavo.metadata.topic_settings import Policies


def why_never_due(due_ms: int | None, now_ms: int, policies: Policies) -> str | None:
    """Why a message that is stored now and due then would never be handed out; None: it will be.

    A time to live counts from when a message is stored, whether it is due or not. Both times are
    milliseconds since the epoch; a message without a due time is due at once.
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
    """Whether ledgers of these are synced later than they are acked."""
    return policies.durability == "deferred"


def has_append_times(policies: Policies) -> bool:
    """Whether messages have the time at which they are stored, and not their producer's."""
    return policies.message_time == "append"


def backlog_policy(policies: Policies) -> Literal["hold", "reject", "evict"]:
    """What happens to a backlog over its quota."""
    return cast(Literal["hold", "reject", "evict"], policies.backlog_policy or "hold")
