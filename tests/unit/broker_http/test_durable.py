"""The headers and formats of the Durable Streams protocol."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest

from octavo.broker.http import durable
from octavo.broker.operations import stream_kinds
from octavo.protocol.json_message import MESSAGE_PARTS_MAX


def test_offsets_sort_as_texts() -> None:
    offsets = [0, 1, 9, 10, 12_345, durable.FIRST_UNSHOWN - 1]
    texts = [durable.offset_text(offset) for offset in offsets]
    assert texts == sorted(texts)
    assert [durable.offset_of(text) for text in texts] == offsets
    assert texts[0] == "0000000000000000_0000000000000000"


@pytest.mark.parametrize(
    "text", ["", "-1", "now", "0", "0,1", "0" * 16, "1" * 16 + "_" + "0" * 16, "x" * 33,
             "0000000000000000_000000000000001٣"]
)  # fmt: skip
def test_what_is_no_offset(text: str) -> None:
    assert durable.offset_of(text) is None


def test_numbers_are_written_in_one_way() -> None:
    for text, number in (("0", 0), ("3600", 3600), (str(2**53 - 1), 2**53 - 1)):
        assert durable.number_of(text) == number
    for text in ("", "-1", "+1", "01", "1.0", "1e3", " 1", "1 ", "٣", str(2**53), "1" * 40):
        assert durable.number_of(text) is None, text


def test_times() -> None:
    assert durable.time_ms_of("1970-01-01T00:00:01Z") == 1_000
    assert durable.time_ms_of("1970-01-01T01:00:00.5+01:00") == 500
    for text in ("", "tomorrow", "1970-01-01", "1970-01-01T00:00:01", "1970-13-01T00:00:01Z"):
        assert durable.time_ms_of(text) is None, text


def test_sources() -> None:
    assert durable.source_of("/v1/durable-streams/public/s") == ("public", "s")
    for path in ("", "s", "/v1/topics/public/s", "/v1/durable-streams/s", "http://x/a/b"):
        assert durable.source_of(path) is None, path


def test_only_true_is_true() -> None:
    assert durable.says_true("TRUE")
    for value in (None, "", "1", "yes", "false"):
        assert not durable.says_true(value)


def test_a_cursor_never_stays() -> None:
    now_ms = 1_000 * (durable.CURSOR_EPOCH_S + 20 * 1_000) + 5
    assert durable.cursor(now_ms, None, 1) == "1000"
    assert durable.cursor(now_ms, "999", 1) == "1000"
    assert durable.cursor(now_ms, "x", 1) == "1000"
    for jitter_s in (1, 19, 20, 3_600):
        assert int(durable.cursor(now_ms, "1000", jitter_s)) > 1000
        assert int(durable.cursor(now_ms, "5000", jitter_s)) > 5000


def test_tags() -> None:
    tag = durable.etag("i-1", 0, 5, closed=False)
    assert tag != durable.etag("i-1", 0, 5, closed=True)
    assert durable.matches(tag, tag)
    assert durable.matches(f'"x", W/{tag}', tag)
    assert durable.matches("*", tag)
    assert not durable.matches(None, tag)
    assert not durable.matches('"i-1:0:5:c"', tag)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b'{"a": 1}', [b'{"a": 1}']),
        (b" [1, [2, 3] ,{}] ", [b"1", b"[2, 3]", b"{}"]),
        (b"[[1]]", [b"[1]"]),
        (b"[]", []),
        (b"null", [b"null"]),
        (b"", None),
        (b"[1,]", None),
        (b"{", None),
        (b'"\xff"', None),
        (b"[" * 100_000, None),
    ],
)
def test_arrays_are_taken_apart_once(body: bytes, values: list[bytes] | None) -> None:
    assert stream_kinds.json_values(body) == values


@pytest.mark.parametrize("more", [0, 1])
def test_an_append_of_json_has_so_many_elements_and_parts(more: int) -> None:
    """Without a bound 4 MiB of empty lists took seconds of the loop."""
    body = b"[" + b"1," * (stream_kinds.ELEMENTS_MAX - 1 + more) + b"1]"
    parts = b'{"a":[' + b"1," * (MESSAGE_PARTS_MAX - 2 + more) + b"1]}"
    if more:
        for one in (body, parts):
            with pytest.raises(stream_kinds.TooManyParts):
                stream_kinds.json_values(one)
    else:
        assert stream_kinds.json_values(body) == [b"1"] * stream_kinds.ELEMENTS_MAX
        assert stream_kinds.json_values(parts) == [parts]


def test_an_event_cannot_begin_within_another() -> None:
    for data in (b"a\r\n\r\nevent: control\ndata: {}", b"\r\revent: x", b"\n\n: x", b""):
        event = durable.data_event(data, "text/plain")
        lines = event.decode().split("\n")
        assert lines[0] == "event: data"
        assert lines[-2:] == ["", ""]
        assert all(line.startswith("data:") for line in lines[1:-2])
        assert b"\r" not in event


def test_no_space_is_lost() -> None:
    """As in a browser: one space after the colon does not belong to the data."""
    for data in (b" x", b"x", b"  x\n y\nz", b""):
        lines = durable.data_event(data, "application/json").decode().split("\n")[1:-2]
        told = [line.removeprefix("data:").removeprefix(" ") for line in lines]
        assert "\n".join(told).encode() == data


def test_bytes_travel_in_base64() -> None:
    event = durable.data_event(bytes(range(256)), "application/octet-stream").decode()
    assert b64decode(event.split("data:")[1]) == bytes(range(256))
    assert not durable.is_text("application/x-ndjson")


def test_what_a_control_event_says() -> None:
    def said(event: bytes) -> dict[str, object]:
        head, _, body = event.decode().partition("\ndata:")
        assert head == "event: control"
        found: dict[str, object] = json.loads(body)
        return found

    at = durable.offset_text(3)
    assert said(durable.control_event(3, cursor="9")) == {
        "streamNextOffset": at, "streamCursor": "9",
    }  # fmt: skip
    assert said(durable.control_event(3, cursor="9", up_to_date=True, closed=True)) == {
        "streamNextOffset": at, "upToDate": True, "streamClosed": True,
    }  # fmt: skip
