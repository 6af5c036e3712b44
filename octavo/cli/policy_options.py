"""The options that say policies: the same for topics, and for namespaces as their defaults."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer

from octavo.protocol.numbers import whole

DEFAULT = "default"
"""Given as a value: say nothing any more, so that the namespace's word or the default holds."""


class _Option(NamedTuple):
    """`path` is the policy's name in the API."""

    path: str
    help: str
    metavar: str


_TIME, _SIZE, _RATE = "TIME|off|default", "SIZE|off|default", "NUMBER|off|default"
_OPTIONS = {
    "--retention-time": _Option(
        "retention.time", "Keep what everybody has acked so long (7d).", _TIME
    ),
    "--retention-size": _Option("retention.size", "… or until a partition has more (10GB).", _SIZE),
    "--ttl": _Option("ttl", "A message stored for longer counts as acked.", _TIME),
    "--backlog-size": _Option(
        "backlog_quota.size", "Unacked bytes a subscription may have in a partition.", _SIZE
    ),
    "--backlog-time": _Option(
        "backlog_quota.time", "How old its oldest unacked message may be.", _TIME
    ),
    "--backlog-policy": _Option(
        "backlog_quota.policy", "Beyond that: hold or reject publishers, or evict the oldest.",
        "hold|reject|evict|default",
    ),
    "--delete-when-inactive": _Option(
        "delete_when_inactive", "Delete a topic that nobody used for so long.", _TIME
    ),
    "--subscription-expiry": _Option(
        "subscription_expiry", "Delete a subscription that nobody used for so long.", _TIME
    ),
    "--message-bytes-max": _Option("message_bytes_max", "A longer message is refused.", _SIZE),
    "--publish-bytes": _Option("rates.publish_bytes", "Published into a topic a second.", _SIZE),
    "--publish-messages": _Option("rates.publish_messages", "Published into it a second.", _RATE),
    "--dispatch-bytes": _Option("rates.dispatch_bytes", "Read out of a topic a second.", _SIZE),
    "--dispatch-messages": _Option("rates.dispatch_messages", "Read out of it a second.", _RATE),
    "--message-time": _Option(
        "message_time", "Of messages: their producers' (create), or when they are stored (append).",
        "create|append|default",
    ),
    "--durability": _Option(
        "durability", "Acknowledged once on disk (sync), or written and synced later (deferred).",
        "sync|deferred|default",
    ),
}  # fmt: skip


def with_policies(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with an option for each policy; it gets what was said as `policies`."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name != "policies"]
    added = {
        flag.removeprefix("--").replace("-", "_"): (option.path, _parameter(flag, option))
        for flag, option in _OPTIONS.items()
    }

    @functools.wraps(command)
    def run(**given: Any) -> None:
        said = {path: given.pop(name) for name, (path, _) in added.items()}
        command(policies=_nested(said), **given)

    parameters = [*own, *(one for _, one in added.values())]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameter(flag: str, option: _Option) -> inspect.Parameter:
    kind = Annotated[
        str | None,
        typer.Option(flag, help=option.help, metavar=option.metavar, show_default=False),
    ]
    name = flag.removeprefix("--").replace("-", "_")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _nested(said: dict[str, str | None]) -> dict[str, Any]:
    """What was said as the API takes it; the broker reads times and sizes."""
    found: dict[str, Any] = {}
    for path, text in said.items():
        if text is None:
            continue
        first, _, second = path.partition(".")
        number = whole(text)
        value = None if text == DEFAULT else text if number is None else number
        if second:
            found.setdefault(first, {})[second] = value
        else:
            found[first] = value
    return found


def merged(policies: dict[str, Any], sets: dict[str, Any]) -> dict[str, Any]:
    """Options beside `--set`: both may say a part of the same thing."""
    found = dict(sets)
    for name, value in policies.items():
        before = found.get(name)
        both = isinstance(value, dict) and isinstance(before, dict)
        found[name] = {**before, **value} if both and isinstance(before, dict) else value
    return found
