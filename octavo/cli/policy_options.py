"""Make the options of policies, for topics and namespaces, from their declarations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from octavo.metadata.topic_settings import POLICIES, Setting, Unit
from octavo.protocol.numbers import whole

DEFAULT = "default"
"""Unsets a setting, so that the namespace's setting or the default applies."""


_VALUES = {Unit.TIME: "TIME", Unit.SIZE: "SIZE", Unit.RATE: "NUMBER"}


def with_policies(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each policy to `command`, which gets their values as `policies`."""
    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name != "policies"]
    added = {
        setting.option.removeprefix("--").replace("-", "_"): setting
        for setting in POLICIES.values()
    }

    @functools.wraps(command)
    def run(**given: Any) -> None:
        said = {setting.path: given.pop(name) for name, setting in added.items()}
        command(policies=_nested(said), **given)

    parameters = [*own, *(_parameter(name, setting) for name, setting in added.items())]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    values = "|".join(setting.words) or f"{_VALUES[setting.unit]}|off"
    option = typer.Option(
        setting.option, help=setting.about, metavar=f"{values}|{DEFAULT}", show_default=False
    )
    kind = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _nested(said: dict[str, str | None]) -> dict[str, Any]:
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
    """Merge options with `--set`: both may set parts of the same setting."""
    found = dict(sets)
    for name, value in policies.items():
        before = found.get(name)
        both = isinstance(value, dict) and isinstance(before, dict)
        found[name] = {**before, **value} if both and isinstance(before, dict) else value
    return found
