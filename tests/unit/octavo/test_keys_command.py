"""`octavo keys`: its changes of a key file, its refusals, and that it shows no key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import run
from octavo.keys import file_keys


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
