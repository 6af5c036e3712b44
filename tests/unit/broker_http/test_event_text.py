"""The text of a durable stream as events: whole characters and line ends, whatever the appends.

Two appends whose border lay within a character gave replacement characters; `\r` at the end of one
and `\n` at the start of the next were two line ends.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.http.durable import LOOK_BACK_BYTES, EventText, data_event, is_text


def told(events: list[bytes]) -> str:
    """Return what a reader of server-sent events sees."""
    found = ""
    for event in events:
        lines = event.decode().split("\n")[1:-2]
        found += "\n".join(one.removeprefix("data:").removeprefix(" ") for one in lines)
    return found


def lines_of(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


TEXTS = st.text(st.sampled_from("aé€😀\r\n \t"), max_size=12) | st.text(max_size=12)


@given(st.lists(TEXTS, max_size=4).map("".join), st.data())
def test_any_cut_gives_the_same_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    reader = EventText()
    events = [reader.feed(part, is_last=at == len(parts) - 1) for at, part in enumerate(parts)]
    shown = [data_event(one, "text/plain") for one in events if one]
    assert told(shown) == lines_of(text)


@given(st.lists(TEXTS, max_size=4).map("".join), st.data())
def test_a_reader_that_comes_again_loses_nothing(text: str, data: st.DataObject) -> None:
    """Wherever it resumes, it gets the beginning of an unfinished character."""
    raw = text.encode()
    cut = data.draw(st.integers(0, len(raw)))
    first = EventText().feed(raw[:cut])
    again = EventText(raw[max(0, cut - LOOK_BACK_BYTES) : cut])
    rest = again.feed(raw[cut:], is_last=True)
    shown = [data_event(one, "text/plain") for one in (first, rest) if one]
    assert told(shown) == lines_of(text)


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_noise_is_utf_8_all_the_same(parts: list[bytes]) -> None:
    reader = EventText()
    found = b"".join([*(reader.feed(part) for part in parts), reader.feed(b"", is_last=True)])
    whole = b"".join(parts).decode(errors="replace")
    assert lines_of(found.decode()) == lines_of(whole)


def test_an_unfinished_character_at_the_end_is_said() -> None:
    reader = EventText()
    assert reader.feed("ab€".encode()[:-1]) == b"ab"
    assert reader.feed(b"", is_last=True) == "\N{REPLACEMENT CHARACTER}".encode()


@pytest.mark.parametrize(
    ("content_type", "found"),
    [
        ("text/plain", True),
        ("text/markdown; charset=UTF-8", True),
        ('text/html;charset="utf-8"', True),
        ("text/plain; charset=us-ascii", True),
        ("application/json", True),
        ("text/plain; charset=utf-16", False),
        ("text/plain; charset=iso-8859-1", False),
        ("image/svg+xml", False),
    ],
)
def test_what_goes_as_text(content_type: str, found: bool) -> None:
    assert is_text(content_type) == found
