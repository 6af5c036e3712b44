"""Options of `octavo consume`: types, filters and priorities of a subscription."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.cli import consume as command
from octavo.cli.options import BadOption


def test_values_by_header() -> None:
    assert command._values(["kind=order", "kind=refund", "to=*", "a=b=c", "empty="]) == {
        "kind": ["order", "refund"],
        "to": ["*"],
        "a": ["b=c"],
        "empty": [""],
    }
    for text in ("kind", "=order"):
        with pytest.raises(BadOption, match="not of the form name=value"):
            command._values([text])


@pytest.mark.parametrize(
    "said",
    [
        {"type_": command.SubscriptionType.KEY_SHARED},
        {"priority": 1},
        {"headers": ["a=b"]},
        {"key_prefix": "eu-"},
        {"durable": False},
    ],
)
def test_they_are_of_a_subscription(said: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="need a --subscription of"):
        command.consume("orders", None, "earliest", **said)
