"""Errors of what was typed ended with 1 here and with 2 there: scripts took them for failures.

Every command is found by walking the tree: a new one is held to it without a line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from octavo.cli.main import app, run

ASKS_FIRST = {
    "topic delete",
    "ledger delete",
    "user delete",
    "security open",
    "subscription delete",
    "stream delete",
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    if path and (not children or command.callback is not None):
        yield " ".join(path), command
    for name, child in children.items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
LEAVES = {name: one for name, one in COMMANDS.items() if not hasattr(one, "commands")}


def is_option(parameter: Any) -> bool:
    return parameter.opts[0].startswith("-")


def kind(parameter: Any) -> object:
    """Of its value: `int`, `str`, …"""
    return parameter.type_descriptor.annotation


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OCTAVO_URL", "OCTAVO_DATA", "OCTAVO_METADATA_URL", "OCTAVO_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def options(name: str) -> set[str]:
    return {flag for one in COMMANDS[name].params for flag in one.opts}


def filled(name: str) -> list[str]:
    """The command with something in place of each argument that it must have."""
    words = name.split()
    for one in COMMANDS[name].params:
        if not is_option(one) and one.required:
            words += ["1" if kind(one) is int else "some"]
            words += ["0"] * (one.nargs - 1 if one.nargs > 1 else 0)
    return words


def check(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(arguments)
    out, err = capsys.readouterr()
    assert code == 2, (arguments, code, err)
    assert "Traceback" not in err
    assert "should not have happened" not in err
    assert err.strip(), arguments
    assert not out.strip() or "Usage" in out, arguments


def test_the_walk_finds_commands_of_every_depth() -> None:
    assert {"standalone", "bookie", "bookie forget", "topic create", "pipeline verify"} <= set(
        COMMANDS
    )
    assert len(LEAVES) > 40


@pytest.mark.parametrize("name", LEAVES)
def test_an_option_that_is_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check([*filled(name), "--no-such-option"], capsys)


@pytest.mark.parametrize("name", LEAVES)
def test_an_argument_too_few_or_too_many(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [one for one in COMMANDS[name].params if not is_option(one)]
    if any(one.required for one in arguments):
        check(name.split(), capsys)
    if all(one.nargs == 1 for one in arguments):
        check([*filled(name), *["more"] * (len(arguments) + 1)], capsys)


WRONG_VALUES = [
    (name, one.opts[0])
    for name, command in COMMANDS.items()
    for one in command.params
    if is_option(one) and kind(one) in (int, float)
]


@pytest.mark.parametrize(("name", "option"), WRONG_VALUES)
def test_a_value_of_the_wrong_kind(
    name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check([*filled(name), option, "nonsense"], capsys)


@pytest.mark.parametrize("name", [name for name in COMMANDS if "--config" in options(name)])
def test_a_settings_file_that_is_missing_or_no_toml(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    check([*filled(name), "--config", "none.toml"], capsys)
    (tmp_path / "bad.toml").write_text("port = = 1")
    check([*filled(name), "--config", "bad.toml"], capsys)


@pytest.mark.parametrize("name", [name for name in COMMANDS if "--set" in options(name)])
def test_a_setting_without_a_value(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check([*filled(name), "--set", "nonsense"], capsys)


@pytest.mark.parametrize("name", [name for name in COMMANDS if "--metadata" in options(name)])
def test_a_metadata_url_that_is_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--data", "folder"] if name in ("bookie", "standalone") else []
    more += ["--yes"] if name in ASKS_FIRST else []
    check([*filled(name), *more, "--metadata", "redis://x"], capsys)


@pytest.mark.parametrize("name", [name for name in LEAVES if name not in ("standalone",)])
def test_a_url_or_a_folder_of_no_cluster(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name.startswith(("pipeline", "demo", "inspect", "zookeeper")):
        pytest.skip("its arguments come first: tests of its own")
    more = ["--yes"] if name in ASKS_FIRST else []
    more += ["--set", "x=1"] if name == "topic update" else []
    more += ["message"] if name == "publish" else []
    if "--url" in options(name):
        check([*filled(name), *more, "--url", "ftp://x"], capsys)
    if "--data" in options(name):
        check([*filled(name), *more, "--data", "no-such-folder"], capsys)


def test_a_bare_bookie_asks_for_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bookie"]) == 2
    assert "give --data DIR" in capsys.readouterr().err
    assert run(["bookie", "--metadata", "file:///tmp/x.db"]) == 2
    assert "give --data DIR" in capsys.readouterr().err
