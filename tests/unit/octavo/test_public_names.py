"""The names of `from octavo import …`: the clients, what they return, and all that they raise."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import octavo
from octavo.client import errors, types
from octavo.client.client import AsyncClient
from octavo.client.producer import ProducerOptions
from octavo.client.settings import ProducerSettings
from octavo.client.sync import Client

CLIENT = Path(inspect.getfile(types)).parent


@pytest.mark.parametrize("name", octavo.__all__)
def test_each_name_is_there(name: str) -> None:
    found = getattr(octavo, name)
    assert name in dir(octavo)
    if name != "__version__":
        assert found.__name__ == name


def test_what_the_client_raises_and_returns_is_among_them() -> None:
    raised = {name for name, one in vars(errors).items() if inspect.isclass(one)}
    raised = {name for name in raised if getattr(errors, name).__module__ == errors.__name__}
    assert len(raised) > 10
    assert raised <= set(octavo.__all__)
    assert octavo.Delivery is types.Delivery
    assert octavo.Message is types.Message
    assert issubclass(octavo.Delivery, octavo.Message)
    assert issubclass(octavo.TopicReplaced, octavo.ClientError)


def test_no_other_name_is() -> None:
    with pytest.raises(AttributeError, match="'octavo' has no attribute 'Publisher'"):
        octavo.Publisher  # type: ignore[attr-defined]  # noqa: B018


def test_a_bookie_does_not_pay_for_the_http_client() -> None:
    look = "import sys, octavo; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("path", sorted(CLIENT.glob("*.py")), ids=lambda path: path.stem)
def test_no_call_takes_just_any_options(path: Path) -> None:
    """A type checker sees a misspelt option."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.kwarg:
            assert node.args.kwarg.annotation is not None
            assert "Unpack[" in ast.unparse(node.args.kwarg.annotation), node.name


def test_a_producers_settings_are_its_options() -> None:
    options = typing.get_type_hints(ProducerOptions)
    of_their_own = {"producer_id", "encoding"}  # calls have these as keywords, in other forms
    assert typing.get_type_hints(ProducerSettings) == {
        name: kind for name, kind in options.items() if name not in of_their_own
    }
    assert {field.name for field in dataclasses.fields(ProducerOptions)} == set(options)


def test_both_clients_take_the_same() -> None:
    for name, call in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_"):
            ours = list(inspect.signature(call).parameters.values())
            theirs = inspect.signature(getattr(AsyncClient, name)).parameters.values()
            assert ours == list(theirs), name
