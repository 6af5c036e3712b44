"""Policies: which there are, what holds when topic and namespace both speak, what is wrong. Pure.

    ttl_ms              a message stored for longer counts as acked, for every subscription
    backlog_bytes       what a subscription may have unacked in a partition, in bytes …
    backlog_age_ms      … and how long its oldest unacked message may have been stored
    backlog_policy      beyond that `hold` publishers, `reject` them, or `evict` the oldest
    inactive_ms         a topic that nobody uses for so long is deleted
    subscription_expiry_ms  a durable subscription that nobody uses for so long is deleted
    message_bytes_max   key, value and headers of one message
    publish_…           bytes and messages a second into the topic, at each owner of partitions
    dispatch_…          bytes and messages a second out of it, likewise
    message_time        `create`: what the producer says; `append`: when it was stored
    durability          `sync`: an ack means on disk; `deferred`: written, and synced later
    retention_…         how long what nobody needs is kept

Where nobody says anything there is no bound, `create` and `sync`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple, cast

from octavo.broker.errors import InvalidSettings
from octavo.metadata.topic_records import Policies

OFF = -1
"""Said of a time, a size or a rate: there is none, whatever the namespace says."""
_AMOUNT_MAX = 2**63 - 1
"""What the metadata store's records hold."""
Source = Literal["topic", "namespace", "default"]
WORDS: Mapping[str, tuple[str, ...]] = {
    "backlog_policy": ("hold", "reject", "evict"),
    "message_time": ("create", "append"),
    "durability": ("sync", "deferred"),
}
"""Policies that are one of some words, the default first."""
NAMES = tuple(one.name for one in fields(Policies) if one.name != "extra")
_MAY_BE_ZERO = ("retention_ms", "retention_bytes")


class Effective(NamedTuple):
    """What holds, and who says so. `value` is None where there is no bound."""

    value: int | str | None
    source: Source


def check_policies(policies: Policies) -> None:
    """Raises `InvalidSettings`, which names the policy, what it is and what it may be."""
    for name in NAMES:
        value = getattr(policies, name)
        if value is None or value == OFF:
            continue
        if name in WORDS:
            if value not in WORDS[name]:
                raise InvalidSettings(
                    f"{name} is {value[:60]!r}; it must be one of {', '.join(WORDS[name])}"
                )
        elif not (least := 0 if name in _MAY_BE_ZERO else 1) <= value <= _AMOUNT_MAX:
            raise InvalidSettings(
                f"{name} is {value}; it must be between {least} and {_AMOUNT_MAX}, or off"
            )


def effective(topic: Policies, namespace: Policies) -> dict[str, Effective]:
    """What holds for a topic, by policy."""
    found: dict[str, Effective] = {}
    speakers: tuple[tuple[Source, Policies], ...] = (("topic", topic), ("namespace", namespace))
    for name in NAMES:
        words = WORDS.get(name)
        holds = Effective(words[0] if words else None, "default")
        for source, policies in speakers:
            if (value := getattr(policies, name)) is not None:
                holds = Effective(None if value == OFF else value, source)
                break
        found[name] = holds
    return found


def resolved(topic: Policies, namespace: Policies) -> Policies:
    """The same as policies, for whoever goes by them: nothing is `OFF`, words are there."""
    values: dict[str, Any] = {name: one.value for name, one in effective(topic, namespace).items()}
    return replace(topic, **values)


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
