"""The client's token: an argument, the environment, a file; an invalid one is not sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import Client
from octavo.client.errors import InvalidCall
from octavo.client.trust import proof_of
from octavo.credentials import TOKEN, TOKEN_FILE, TokenUnusable, bearer


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TOKEN, TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)


def test_without_a_token_nothing_is_shown() -> None:
    assert proof_of(None) == bearer() == {}
    assert proof_of("") == {}


def test_what_is_given_counts_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("of-the-file\n")
    monkeypatch.setenv(TOKEN_FILE, str(path))
    assert proof_of(None) == {"Authorization": "Bearer of-the-file"}
    path.write_text("another\n")
    assert bearer() == {"Authorization": "Bearer another"}, "read each time"
    monkeypatch.setenv(TOKEN, "of-the-environment")
    assert proof_of(None) == {"Authorization": "Bearer of-the-environment"}
    assert proof_of("mine") == {"Authorization": "Bearer mine"}
    assert proof_of("") == {}


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "Bearer abc", "tökén", "a\x00b"])
def test_what_is_no_token_is_refused_and_not_told(token: str) -> None:
    with pytest.raises(InvalidCall) as refused:
        Client("http://127.0.0.1:1", token=token)
    assert token not in str(refused.value)


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "gone"))
    with pytest.raises(TokenUnusable, match="gone"):
        bearer()
    with pytest.raises(InvalidCall, match="gone"):
        Client("http://127.0.0.1:1")
