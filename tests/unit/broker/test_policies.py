"""Policies: which value holds when topic and namespace both set one, and invalid values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.errors import InvalidSettings
from octavo.broker.types import TopicSettings
from octavo.metadata.topic_settings import NAMES, OFF, WORDS, check_policies, effective, resolved
from octavo.metadata.topics import Policies

amounts = st.sampled_from([None, OFF, 1, 2**63 - 1])
policies = st.builds(
    Policies,
    **{name: st.sampled_from([None, *WORDS[name]]) if name in WORDS else amounts for name in NAMES},
)


@given(topic=policies, namespace=policies)
def test_the_topics_own_word_goes_first(topic: Policies, namespace: Policies) -> None:
    check_policies(topic)
    holds = effective(topic, namespace)
    plain = resolved(topic, namespace)
    for name in NAMES:
        own, common = getattr(topic, name), getattr(namespace, name)
        said = own if own is not None else common
        default = WORDS[name][0] if name in WORDS else None
        assert holds[name].value == (default if said is None else None if said == OFF else said)
        by = "topic" if own is not None else "namespace" if common is not None else "default"
        assert holds[name].source == by
        assert getattr(plain, name) == holds[name].value
    assert resolved(plain, Policies()) == plain, "what holds once holds for good"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ttl_ms": 0}, "ttl is 0 s; it must be between 0.001"),
        ({"ttl_ms": -2}, "or off"),
        ({"retention_ms": -2}, "between 0"),
        ({"backlog_bytes": 2**63}, "backlog_quota.size"),
        ({"backlog_policy": "drop"}, "hold, reject, evict"),
        ({"message_time": "now"}, "create, append"),
        ({"durability": "x" * 100}, "sync, deferred"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        check_policies(Policies(**wrong))
    with pytest.raises(InvalidSettings, match=says):
        TopicSettings(policies=Policies(**wrong))


def test_a_topics_settings_under_its_namespace() -> None:
    namespace = Policies(retention_ms=5, retention_bytes=7, ttl_ms=9)
    silent = TopicSettings(partitions=3).under(namespace)
    assert (silent.retention_ms, silent.retention_bytes, silent.policies.ttl_ms) == (5, 7, 9)
    assert silent.partitions == 3
    speaks = TopicSettings(retention_ms=OFF, retention_bytes=8, policies=Policies(ttl_ms=OFF))
    held = speaks.under(namespace)
    assert (held.retention_ms, held.retention_bytes, held.policies.ttl_ms) == (None, 8, None)
    assert replace(silent, partitions=3).under(Policies()) == silent, "asked twice, the same"
