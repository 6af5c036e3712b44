"""Commands for access, quotas, keys, bookies and messages: results, and refusals in one line."""

from __future__ import annotations

import asyncio
import http.server
import io
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from octavo.cli import consume as command
from octavo.cli import stream as stream_command
from octavo.cli.main import app, run
from octavo.cli.options import BadOption
from octavo.cli.publish import BadLine
from octavo.cli.token import ttl_seconds
from octavo.client.durable import StreamInfo, _json_body
from octavo.keys import file_keys
from octavo.security.identity.api_keys import identity_of_key, parse_api_keys
from tests.fixtures.formats import make
from tests.support.identities import PASSWORD
from tests.support.raw_bookie import open_metadata, running_bookie

ORDERS = "topic:payments/orders"


@pytest.fixture
async def at(tmp_path: Path) -> tuple[str, str]:
    async with open_metadata(tmp_path) as store:
        return ("--metadata", store.url)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run(arguments) == 2
    return " ".join(capsys.readouterr().err.split())


def test_two_users_get_different_rights(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(said(capsys, "security", "status", "--json", *at)) == {
        "secured": False, "version": -1, "rules": 0, "admins": [],
    }  # fmt: skip
    said(capsys, "security", "secure", "--admin", "user:ann", *at)
    said(capsys, "acl", "allow", "user:alice", "produce", ORDERS, *at)
    said(capsys, "acl", "allow", "group:billing", "consume", "topic:payments/*", *at)
    said(capsys, "acl", "deny", "user:eve", "all", "*", *at)
    shown = json.loads(said(capsys, "security", "status", "--json", *at))
    assert (shown["secured"], shown["rules"], shown["admins"]) == (True, 4, ["user:ann"])

    def explained(who: str, what: str, which: str, *more: str) -> tuple[bool, list[str]]:
        out = said(capsys, "acl", "explain", who, what, which, "--json", *more, *at)
        found = json.loads(out)
        return found["allowed"], found["why"]

    assert explained("user:alice", "produce", ORDERS)[0]
    allowed, why = explained("user:alice", "consume", ORDERS)
    assert not allowed
    assert "no rule allows user:alice to consume" in why[0]
    assert "not about consume" in why[1]
    assert not explained("user:bob", "consume", ORDERS)[0]
    assert explained("user:bob", "consume", ORDERS, "--group", "billing")[0]
    assert explained("user:ann", "admin", "cluster")[0]
    assert not explained("anonymous", "describe", "cluster")[0]
    assert "denies it" in explained("user:eve", "consume", ORDERS, "--group", "group:billing")[1][0]


def test_the_groups_of_a_user_count(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "security", "secure", "--admin", "user:ann", *at)
    said(capsys, "user", "create", "bob", "--no-password", "--group", "billing", *at)
    said(capsys, "acl", "allow", "group:billing", "consume", ORDERS, *at)
    out = said(capsys, "acl", "explain", "user:bob", "consume", ORDERS, *at)
    assert out.startswith("yes: ")
    assert "user:bob is in group:billing" in out


def test_rules_and_roles_go_as_they_came(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "acl", "allow", "role:ops", "describe,alter", "cluster", *at)
    said(capsys, "acl", "role", "add", "group:ops", "role:ops", *at)
    said(capsys, "acl", "role", "add", "group:ops", "role:ops", *at)
    (rule,) = json.loads(said(capsys, "acl", "list", "--json", *at))
    assert rule == {
        "effect": "allow", "principal": "role:ops", "operations": ["alter", "describe"],
        "resource": "cluster",
    }  # fmt: skip
    assert json.loads(said(capsys, "acl", "list", "--principal", "user:x", "--json", *at)) == []
    assert json.loads(said(capsys, "acl", "role", "list", "--json", *at)) == [
        {"principal": "group:ops", "role": "role:ops"}
    ]
    said(capsys, "acl", "remove", "role:ops", "alter,describe", "cluster", *at)
    said(capsys, "acl", "role", "remove", "group:ops", "role:ops", *at)
    assert json.loads(said(capsys, "acl", "list", "--json", *at)) == []
    assert json.loads(said(capsys, "acl", "role", "list", "--json", *at)) == []
    assert "there is no rule" in refused(capsys, "acl", "remove", "role:ops", "all", "cluster", *at)


def test_opening_keeps_the_rules(at: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "security", "secure", "--admin", "user:ann", *at)
    said(capsys, "acl", "allow", "user:alice", "produce", ORDERS, *at)
    said(capsys, "security", "open", "--yes", *at)
    shown = json.loads(said(capsys, "security", "status", "--json", *at))
    assert (shown["secured"], shown["rules"]) == (False, 2)
    assert said(capsys, "acl", "explain", "user:bob", "produce", ORDERS, *at).startswith("yes")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("allow", "alice", "produce", ORDERS), "a principal is user:NAME"),
        (("allow", "user:alice", "devour", ORDERS), "operations are produce"),
        (("allow", "user:alice", "produce", "topic:x"), "a resource is cluster"),
        (("explain", "user:alice", "produce", "topic:x/*"), "name a single resource"),
        (("explain", "user:alice", "produce,consume", ORDERS), "a single operation"),
        (("explain", "role:x", "produce", ORDERS), "a principal is"),
        (("role", "add", "role:x", "role:y"), "a principal is"),
        (("role", "add", "user:x", "ops"), "a principal is"),
    ],
)
def test_mistakes_are_told(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert told in refused(capsys, "acl", *arguments, *at)
    assert json.loads(said(capsys, "acl", "list", "--json", *at)) == []


def test_an_admin_is_a_user_or_group(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ann", "role:x", "*", "node:b"):
        assert "a principal is" in refused(capsys, "security", "secure", "--admin", name, *at)
    assert not json.loads(said(capsys, "security", "status", "--json", *at))["secured"]


# `octavo user` and `octavo token`: their results are accepted, and no secret is an argument.
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
        for found in commands[noun].commands.values():
            for one in found.params:
                if any(word in str(one.name).upper() for word in SECRETS):
                    assert "file" in str(one.name) or one.is_flag, (found.name, one.name)


# `octavo quota`: set, list, show, remove; mistakes are named, with the right form.
@pytest.fixture
async def url(tmp_path: Path) -> str:
    async with open_metadata(tmp_path) as store:
        return store.url


def quota_said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["quota", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_quota_is_set_shown_and_removed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--metadata", url)
    quota_said(capsys, "set", "user:*", "requests=50", "streams=unlimited", *at)
    quota_said(capsys, "set", "user:alice", "publish_bytes=10MB", *at)
    quota_said(capsys, "set", "user:alice", "requests=100", *at)
    assert json.loads(quota_said(capsys, "list", "--json", *at)) == [
        {"subject": "user:*", "requests": 50, "streams": -1},
        {"subject": "user:alice", "requests": 100, "publish_bytes": 10_000_000},
    ]
    assert "publish_bytes=10M" in quota_said(capsys, "list", *at)
    shown = json.loads(quota_said(capsys, "show", "user:alice", "--json", *at))
    assert (shown["requests"], shown["streams"], shown["read_bytes"]) == (100, -1, None)
    assert "no bound" in quota_said(capsys, "show", "user:bob", *at)
    quota_said(capsys, "remove", "user:alice", "requests", *at)
    assert json.loads(quota_said(capsys, "show", "user:alice", "--json", *at))["requests"] == 50
    quota_said(capsys, "remove", "user:alice", *at)
    quota_said(capsys, "remove", "user:*", *at)
    assert json.loads(quota_said(capsys, "list", "--json", *at)) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("set", "alice", "requests=1"), "a quota is for user:NAME"),
        (("set", "user:alice", "request=1"), "it has requests,"),
        (("set", "user:alice", "requests=fast"), "write a whole number"),
        (("set", "user:alice", "requests"), "name=value"),
        (("set", "user:alice", "topics=3"), "counted for each namespace"),
        (("show", "group:staff"), "a quota is for user:NAME"),
        (("remove", "user:alice", "speed"), "it has requests,"),
    ],
)
def test_what_was_typed_wrong(
    url: str, arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["quota", *arguments, "--metadata", url]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


# `octavo keys`: its changes of a key file, its refusals, and that it shows no key.
@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OCTAVO_KEYS_FILE", raising=False)
    return tmp_path / "keys"


def keys(path: Path, *arguments: str) -> int:
    return run(["keys", *arguments, "--file", str(path)])


def test_a_namespaces_newest_key_wraps_and_all_may_be_forgotten(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for namespace in ("a", "b", "a"):
        assert keys(path, "add", namespace) == 0
    assert keys(path, "list", "--json") == 0
    said = capsys.readouterr()
    listed = [json.loads(line) for line in said.out.splitlines() if line.startswith("{")]
    assert [(one["namespace"], one["state"]) for one in listed] == [
        ("a", "wraps"),
        ("a", "unwraps"),
        ("b", "wraps"),
    ]
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            assert line.split()[2] not in said.out + said.err
    old = listed[1]["key_id"]
    assert keys(path, "forget", "a", "--key", old, "--yes") == 0
    assert [name for name, _ in file_keys(path).names()] == ["a", "b"]
    assert keys(path, "forget", "a", "--yes") == 0
    assert [name for name, _ in file_keys(path).names()] == ["b"]


def test_what_cannot_be_is_refused_and_changes_nothing(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["keys", "add", "a"]) == 2
    assert "OCTAVO_KEYS_FILE" in capsys.readouterr().err
    assert keys(path, "add", "no/name") == 2
    assert not path.exists()
    assert keys(path, "list") == 1
    assert keys(path, "add", "a") == 0
    before = path.read_text()
    assert keys(path, "forget", "b", "--yes") == 2
    assert keys(path, "forget", "a", "--key", "none", "--yes") == 2
    assert path.read_text() == before
    path.chmod(0o644)
    assert keys(path, "add", "b") == 1
    assert "chmod 600" in capsys.readouterr().err
    path.chmod(0o600)
    path.write_text("no key file")
    assert keys(path, "add", "b") == 2
    assert path.read_text() == "no key file"


# Options of `octavo consume`: types, filters and priorities of a subscription.
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


# `octavo stream append`: how it splits its input.
class Pipe(io.BytesIO):
    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(3)


def info(content_type: str) -> StreamInfo:
    return StreamInfo(content_type, "", False, None, None)


def read(source: io.BytesIO, content_type: str = "application/json; charset=utf-8") -> list[Any]:
    return [
        part if isinstance(part, bytes) else [bytes(one) for one in part]
        for part in stream_command._read(source, info(content_type))  # type: ignore[arg-type]
    ]


def test_lines_are_whole_however_they_come() -> None:
    lines = b'{"order": 1}\r\n\n"\xc3\xa4"\n1.50'
    assert read(io.BytesIO(lines)) == [[b'{"order": 1}', b'"\xc3\xa4"'], [b"1.50"]]
    assert read(Pipe(lines)) == [[b'{"order": 1}'], [b'"\xc3\xa4"'], [b"1.50"]]
    assert b"".join(read(Pipe(lines), "text/plain")) == lines


def test_an_append_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_command, "APPEND_BYTES", 100)
    found = read(io.BytesIO(b"1\n" * 20 + b"9" * 150 + b"\n2\n"))
    assert [len(part) for part in found] == [6, 6, 6, 2, 1, 1]
    monkeypatch.setattr(stream_command, "MESSAGE_BYTES_MAX", 10)
    with pytest.raises(BadLine, match="line 3 is too long: a message has at most 10 bytes"):
        read(Pipe(b"1\n2\n" + b"9" * 20 + b"\n"))


def test_lines_before_a_bad_one_are_appended() -> None:
    found = stream_command._batches([b"1", b"2", b"{", b"4"], 6)
    assert [bytes(one) for one in next(found)] == [b"1", b"2"]
    with pytest.raises(BadLine, match=r"line 9 must be JSON.*; the lines before it are appended"):
        next(found)


def test_json_goes_as_it_is_written() -> None:
    assert _json_body([msgspec.Raw(b"1.50"), {"a": 1}, [2]]) == b'[1.50,{"a":1},[2]]'


# `octavo bookie …`: sizes of folders, answers of a running bookie, refusals in one line.
WHOLE = sorted((make.HERE / "bookie").iterdir())[-1]


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_ADMIN_URL", raising=False)


@pytest.fixture
def bookie(tmp_path: Path) -> Path:
    shutil.copytree(WHOLE, tmp_path / "b")
    return tmp_path / "b"


def bookie_said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run(["bookie", *arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, " ".join(out.split()), " ".join(err.split())


@pytest.mark.usefixtures("_plain")
def test_sizes_from_folders(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bookie_said(["sizes", str(bookie)], capsys)
    assert code == 0
    assert out.startswith("ledger bytes entries logs live bytes 7 2,672 16 2 2,744")
    assert "3 ledgers, 3,082 bytes in entry logs" in err
    assert run(["bookie", "sizes", str(bookie), "--json", "--limit", "1"]) == 0
    (one,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert one == {
        "ledger_id": 7,
        "stored_bytes": 2672,
        "logs": 2,
        "entries": 16,
        "live_bytes": 2744,
    }


@pytest.mark.usefixtures("_plain")
def test_sizes_of_logs_that_lost_their_map_and_index(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = bookie / "ledgers-1/0000000000000001.log"
    log.write_bytes(log.read_bytes()[:-60])
    shutil.rmtree(bookie / "ledgers-1/index")
    _, out, _ = bookie_said(["sizes", str(bookie)], capsys)
    assert out.startswith("ledger bytes entries logs live bytes 7 2,672 0 2 0")


# Check and rebuild


@pytest.mark.usefixtures("_plain")
def test_a_whole_bookie_is_said_to_be_whole(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = bookie_said(["check", str(bookie)], capsys)
    assert (code, out) == (0, "")
    assert "no damage found" in err
    assert "3 ledgers · 4 runs" in err
    assert "21 entries in 4 records of the index · 3 journal blocks after the mark" in err


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize(
    ("name", "offset", "named"),
    [
        ("ledgers-1/0000000000000001.log", 327, "extent-checksum"),
        ("ledgers-1/0000000000000001.state", 60, "state"),
        ("journal/0000000000000001.journal", 3640, "journal"),
        ("ledgers-2/journal.mark", 20, "mark"),
        ("ledgers-2/VERSION", 0, "file-header"),
    ],
)
def test_damage_anywhere_is_exit_code_1(
    name: str, offset: int, named: str, bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(bookie / name, offset)
    code = run(["bookie", "check", str(bookie), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["ok"]) == (1, False)
    assert (named, str(bookie / name)) in [(one["kind"], one["path"]) for one in found["damage"]]
    code, out, err = bookie_said(["check", str(bookie)], capsys)
    assert code == 1
    assert named in out
    assert "damaged place" in err


@pytest.mark.usefixtures("_plain")
def test_a_missing_index_is_made_anew(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(bookie / "ledgers-1/index")
    code, _, err = bookie_said(["check", str(bookie)], capsys)
    assert code == 0, "the next start makes it"
    assert "A start rebuilds the index" in err
    code, _, err = bookie_said(["rebuild-index", str(bookie)], capsys)
    assert code == 0
    assert "4 runs of 2 entry logs indexed, up to byte 1,602 of log 2" in err
    assert bookie_said(["check", str(bookie)], capsys)[0] == 0
    code, out, _ = bookie_said(["rebuild-index", str(bookie), "--json"], capsys)
    assert json.loads(out) == {"runs": 4, "logs": 2, "covered": [2, 1602]}


@pytest.mark.usefixtures("_plain")
def test_an_index_that_cannot_be_whole_is_not_made(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(bookie / "ledgers-1/0000000000000001.log", 24)
    before = sorted(path.name for path in (bookie / "ledgers-1/index").iterdir())
    code, _, err = bookie_said(["rebuild-index", str(bookie)], capsys)
    assert code == 1
    assert "damaged" in err
    assert sorted(path.name for path in (bookie / "ledgers-1/index").iterdir()) == before


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize("command", ["check", "rebuild-index"])
async def test_who_holds_the_folders_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_bookie(tmp_path):
        code, _, err = await asyncio.to_thread(bookie_said, [command, str(tmp_path)], capsys)
        assert code == 1
        assert f"held by process {os.getpid()}" in err
    code, _, err = await asyncio.to_thread(bookie_said, [command, str(tmp_path)], capsys)
    assert code == 0, err


@pytest.mark.usefixtures("_plain")
def test_a_folder_that_is_not_mounted_is_named(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (bookie / "journal/VERSION", bookie / "ledgers-1/VERSION"):
        text = path.read_text().replace("/var/lib/octavo/b1", str(bookie))
        path.write_text(text)
    shutil.rmtree(bookie / "ledgers-2")
    code, _, err = bookie_said(["rebuild-index", str(bookie)], capsys)
    assert code == 2
    assert "ledgers-2, which the cookie names, is not there" in err


# A running bookie


@pytest.mark.usefixtures("_plain")
async def test_a_running_bookie_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_bookie(tmp_path, admin_port=0) as node:
        url = f"http://127.0.0.1:{node.admin.port}"

        async def ask(*arguments: str) -> tuple[int, str, str]:
            return await asyncio.to_thread(bookie_said, [*arguments, "--url", url], capsys)

        assert (await ask("sizes"))[::2] == (0, "0 ledgers, 0 bytes in entry logs")
        code, _, err = await ask("gc")
        assert code == 0
        assert err == "no round since the start; --start begins one"
        code, _, err = await ask("gc", "--start")
        assert code == 0, err
        code, _, err = await ask("damage")
        assert (code, err) == (0, "no damage found")
        code, out, _ = await ask("scrub")
        assert code == 0
        assert out
        code, _, err = await ask("gc", "--json")
        assert code == 0


ANSWERS: dict[str, Any] = {
    "/gc": {
        "running": True,
        "rounds": 3,
        "quarantined_ledgers": 1,
        "log_count": 2,
        "last_rounds": [{"metadata_error": "the store is away"}],
        "total": {"logs_removed": 4, "reclaimed_bytes": 5000, "copied_bytes": 60},
        "logs": [
            {
                "log_id": 9,
                "bytes": 1000,
                "live_bytes": 900,
                "live_ratio": 0.9,
                "action": "keep",
                "reason": "mostly live",
            }
        ],
    },
    "/damage": {
        "damage": [
            {
                "kind": "extent-checksum",
                "path": "/l/1.log",
                "offset": 24,
                "length": 100,
                "ledger_id": 7,
                "first": 3,
                "last": 9,
            }
        ]
    },
    "/ledgers": "no json",
}


@pytest.fixture
def canned() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = ANSWERS[self.path.partition("?")[0]]
            body = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.usefixtures("_plain")
def test_gc_says_per_log_why_it_is_kept(canned: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bookie_said(["gc", "--url", canned], capsys)
    assert code == 0
    assert "9 1,000 900 90% keep mostly live" in out
    assert "2 logs · 3 rounds, one under way · 4 logs removed, 5,000 bytes given back" in err
    assert "could not prove any ledger gone: the store is away" in err


@pytest.mark.usefixtures("_plain")
def test_damage_is_exit_code_1(canned: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = bookie_said(["damage", "--url", canned], capsys)
    assert code == 1
    assert "extent-checksum /l/1.log 24 100 7 3–9" in out
    assert err == "1 damaged place"
    assert bookie_said(["damage", "--url", canned, "--json"], capsys)[0] == 1


@pytest.mark.usefixtures("_plain")
def test_an_answer_that_is_none(canned: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = bookie_said(["sizes", "--url", canned], capsys)
    assert code == 1
    assert "is that its admin_port?" in err


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gc"], "which bookie? name its admin port"),
        (["gc", "--url", "127.0.0.1:9"], "no answer from http://127.0.0.1:9"),
        (["gc", "--url", "ftp://x"], "write http://host:port"),
        (["gc", "--url", "http://["], "no answer from"),
        (["sizes", "/nowhere/at/all"], "is not a folder"),
        (["sizes", "{tmp}"], "no bookie's folder is there"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = bookie_said([one.format(tmp=tmp_path) for one in arguments], capsys)
    assert code == (1 if message.startswith("no answer") else 2)
    assert message in err
    assert err.startswith("error:")
    assert not out


@pytest.mark.usefixtures("_plain")
async def test_an_unknown_path_says_what_there_is(tmp_path: Path) -> None:
    from octavo.cli.admin_port import AdminRefused, ask

    async with running_bookie(tmp_path, admin_port=0) as node:
        with pytest.raises(AdminRefused, match="GET /ledgers"):
            await asyncio.to_thread(ask, f"127.0.0.1:{node.admin.port}", "/nothing")
