"""`octavo user` and `octavo token`: their results are accepted, and no secret is an argument."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from octavo.cli.main import app, run
from octavo.cli.options import BadOption
from octavo.cli.token import ttl_seconds
from octavo.security.identity.api_keys import identity_of_key, parse_api_keys
from tests.support.identities import PASSWORD

SECRETS = ("PASSWORD", "TOKEN", "KEY")


@pytest.fixture
def octavo(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    store = f"file://{tmp_path}/metadata.db"

    def call(*arguments: str, code: int = 0, stdin: str = "", cluster: bool = True) -> Any:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        where = ["--metadata", store] if cluster else []
        assert run([*arguments, *where]) == code, capsys.readouterr()
        return capsys.readouterr()

    return call


def users(octavo: Any) -> Any:
    return json.loads(octavo("user", "list", "--json").out)


def create(octavo: Any, name: str = "alice", *more: str, **how: Any) -> None:
    octavo("user", "create", name, "--password-file", "-", *more, stdin=PASSWORD, **how)


def test_a_user_from_beginning_to_end(octavo):
    create(octavo, "alice", "--group", "staff", "--group", "group:b")
    octavo("user", "create", "bob", "--no-password")
    assert [(one["user"], one["password"], one["groups"]) for one in users(octavo)] == [
        ("alice", True, ["staff", "b"]),
        ("bob", False, []),
    ]
    assert "alice" in octavo("user", "list").out
    octavo("user", "groups", "alice", "writers")
    assert octavo("user", "groups", "alice").out == "writers\n"
    assert json.loads(octavo("user", "groups", "alice", "--none", "--json").out)["groups"] == []
    octavo("user", "disable", "alice")
    assert users(octavo)[0]["disabled"]
    octavo("user", "enable", "alice")
    assert not users(octavo)[0]["disabled"]
    octavo("user", "password", "alice", "--password-file", "-", stdin="another password\n")
    octavo("user", "delete", "alice", "--yes")
    assert [one["user"] for one in users(octavo)] == ["bob"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "alice", "--no-password"], 1, "user 'alice' exists already"),
        (["password", "bob"], 1, "there is no user 'bob'"),
        (["disable", "bob"], 1, "there is no user 'bob'"),
        (["delete", "bob", "--yes"], 1, "there is no user 'bob'"),
        (["groups", "bob", "g"], 1, "there is no user 'bob'"),
        (["create", "a b", "--no-password"], 2, "cannot be a user's name"),
        (["create", "bob", "--no-password", "--group", "a b"], 2, "not a principal"),
        (["create", "bob", "--password-file", "none"], 1, "No such file"),
        (["create", "bob", "--no-password", "--password-file", "x"], 2, "choose one"),
        (["groups", "alice", "g", "--none"], 2, "choose one"),
    ],
)
def test_what_does_not_go_is_told(octavo, arguments, code, said):
    create(octavo)
    assert said in " ".join(octavo("user", *arguments, code=code).err.split())


def test_a_password_is_asked_twice_and_not_shown(octavo, tmp_path):
    where = ["--metadata", f"file://{tmp_path}/metadata.db"]
    for said, code in ((f"{PASSWORD}\n{PASSWORD}\n", 0), (f"{PASSWORD}\nanother one\n", 1)):
        name = f"alice{code}"
        found = CliRunner().invoke(app, ["user", "create", name, *where], input=said)
        assert found.exit_code == code, found.output
        assert PASSWORD not in found.output
    assert [one["user"] for one in users(octavo)] == ["alice0"]


@pytest.mark.parametrize(("given", "said"), [("", "is empty"), ("short", "8 to 1024 characters")])
def test_a_password_that_is_not_taken_is_not_shown(octavo, given, said):
    told = octavo("user", "create", "bob", "--password-file", "-", code=2, stdin=given).err
    assert said in told
    assert not given or given not in told


def test_the_first_line_of_a_file_is_the_password(octavo, tmp_path):
    (tmp_path / "file").write_text(PASSWORD + "\r\nand a note\n")
    octavo("user", "create", "alice", "--password-file", str(tmp_path / "file"))
    assert users(octavo)[0]["password"]


def test_a_token_is_good_until_it_is_revoked_and_a_new_one_then(octavo):
    def verdict(token: str) -> str:
        found = octavo("token", "inspect", "--json", stdin=token)
        return json.loads(found.out)["verdict"]

    token = octavo("token", "create", "--principal", "user:alice", "--ttl", "1h").out.strip()
    assert token.count(".") == 2
    assert verdict(token) == "good"
    octavo("token", "revoke", "--principal", "user:alice")
    assert verdict(token) == "refused: the token was revoked"
    again = octavo("token", "create", "--principal", "user:alice", "--group", "jobs").out.strip()
    assert verdict(again) == "good"
    assert verdict(again[:-4] + "AAAA").startswith("refused: the token's signature")
    shown = octavo("token", "inspect", stdin=again, cluster=False).out
    assert "jobs" in shown
    assert "not checked" in shown
    create(octavo)
    octavo("user", "disable", "alice")
    assert verdict(again) == "refused: the user is disabled"
    octavo("token", "create", "--principal", "user:alice", code=2)


@pytest.mark.parametrize("arguments", [
    ["--principal", "alice"], ["--principal", "node:b1"], ["--principal", "group:staff"],
    ["--principal", "user:alice", "--ttl", "soon"], ["--principal", "user:a", "--ttl", "99999d"],
    ["--principal", "user:alice", "--group", "*x y"],
])  # fmt: skip
def test_a_token_that_is_not_made(octavo, arguments):
    assert "error:" in octavo("token", "create", *arguments, code=2).err


def test_how_long():
    assert [ttl_seconds(text) for text in ("90s", "15m", "12h", "30d")] == [
        90, 900, 43_200, 2_592_000,
    ]  # fmt: skip
    for text in ("0d", "-1d", "1w", "1.5h", "", "9" * 40 + "s"):
        with pytest.raises(BadOption):
            ttl_seconds(text)


def test_an_api_key_is_taken_with_its_line(octavo):
    found = json.loads(
        octavo("user", "key", "shop", "--group", "writers", "--json", cluster=False).out
    )
    assert identity_of_key(found["key"], parse_api_keys(found["line"].encode())).name == "user:shop"
    shown = octavo("user", "key", "shop", cluster=False)
    [key] = shown.out.split()
    assert key not in shown.err
    octavo("user", "key", "a:b", code=2, cluster=False)


def test_no_command_takes_a_secret_as_an_argument():
    commands = cast(Any, typer.main.get_command(app)).commands
    for noun in ("user", "token"):
        for command in commands[noun].commands.values():
            for one in command.params:
                if any(word in str(one.name).upper() for word in SECRETS):
                    assert "file" in str(one.name) or one.is_flag, (command.name, one.name)
