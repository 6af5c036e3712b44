"""`octavo stream append`: how it splits its input."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from octavo.cli import stream as command
from octavo.cli.publish import BadLine
from octavo.client.durable import StreamInfo, _json_body


class Pipe(io.BytesIO):
    """Returns a few bytes at a time."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(3)


def info(content_type: str) -> StreamInfo:
    return StreamInfo(content_type, "", False, None, None)


def read(source: io.BytesIO, content_type: str = "application/json; charset=utf-8") -> list[Any]:
    return [
        part if isinstance(part, bytes) else [bytes(one) for one in part]
        for part in command._read(source, info(content_type))  # type: ignore[arg-type]
    ]


def test_lines_are_whole_however_they_come() -> None:
    lines = b'{"order": 1}\r\n\n"\xc3\xa4"\n1.50'
    assert read(io.BytesIO(lines)) == [[b'{"order": 1}', b'"\xc3\xa4"'], [b"1.50"]]
    assert read(Pipe(lines)) == [[b'{"order": 1}'], [b'"\xc3\xa4"'], [b"1.50"]]
    assert b"".join(read(Pipe(lines), "text/plain")) == lines


def test_an_append_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "APPEND_BYTES", 100)
    found = read(io.BytesIO(b"1\n" * 20 + b"9" * 150 + b"\n2\n"))
    assert [len(part) for part in found] == [6, 6, 6, 2, 1, 1]
    monkeypatch.setattr(command, "MESSAGE_BYTES_MAX", 10)
    with pytest.raises(BadLine, match="line 3 is too long: a message has at most 10 bytes"):
        read(Pipe(b"1\n2\n" + b"9" * 20 + b"\n"))


def test_lines_before_a_bad_one_are_appended() -> None:
    found = command._batches([b"1", b"2", b"{", b"4"], 6)
    assert [bytes(one) for one in next(found)] == [b"1", b"2"]
    with pytest.raises(BadLine, match=r"line 9 must be JSON.*; the lines before it are appended"):
        next(found)


def test_json_goes_as_it_is_written() -> None:
    assert _json_body([msgspec.Raw(b"1.50"), {"a": 1}, [2]]) == b'[1.50,{"a":1},[2]]'
