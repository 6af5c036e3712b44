"""Files that a process lives by."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from octavo.security.identity import files
from octavo.security.identity.files import WatchedFile
from octavo.security.settings import SecurityError


def number(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise SecurityError("no number") from None


def test_it_is_read_again_when_it_has_changed_and_only_then(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile("some_file", str(path), number)
    assert (file.value, file.refresh()) == (1, False)
    path.write_text("22")
    assert (file.refresh(), file.refresh(), file.value, file.refresh()) == (False, True, 22, False)


def test_a_file_that_is_being_written_is_not_taken(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile("some_file", str(path), number)
    for text in ("2", "23", "234"):
        path.write_text(text)
        assert not file.refresh()
    assert file.value == 1
    assert file.refresh()
    assert file.value == 234


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")

    def slow(data: bytes) -> int:
        if data == b"22":
            path.write_text("333")
        return number(data)

    file = WatchedFile("some_file", str(path), slow)
    path.write_text("22")
    assert [file.refresh() for _ in range(2)] == [False, False]
    assert file.value == 1
    assert [file.refresh() for _ in range(2)] == [False, True]
    assert file.value == 333


def test_what_cannot_be_used_changes_nothing_and_is_told_once(tmp_path):
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile("some_file", str(path), number)
    with capture_logs() as logs:
        path.write_text("half wri")
        assert [file.refresh() for _ in range(3)] == [False] * 3
        path.unlink()
        assert [file.refresh() for _ in range(3)] == [False] * 3
        path.write_text("333")
        assert [file.refresh() for _ in range(3)] == [False, True, False]
    assert file.value == 333
    assert [one["event"] for one in logs] == [
        *["security_file_not_loaded"] * 2, "security_file_loaded",
    ]  # fmt: skip


def test_a_process_does_not_begin_without(tmp_path, monkeypatch):
    path = tmp_path / "file"
    with pytest.raises(SecurityError, match=r"some_file = .*No such file"):
        WatchedFile("some_file", str(path), number)
    path.write_text("x")
    with pytest.raises(SecurityError, match=r"some_file = .*no number"):
        WatchedFile("some_file", str(path), number)
    monkeypatch.setattr(files, "FILE_BYTES_MAX", 2)
    path.write_text("123")
    with pytest.raises(SecurityError, match="longer than"):
        WatchedFile("some_file", str(path), number)
