"""`octavo publish --ndjson|--envelope|--key-field` ignored those options for messages given as
arguments: they were stored as text, without a key, and nothing said so.
"""

from __future__ import annotations

import pytest

from octavo.cli.main import run
from octavo.cli.publish import BadLine, _arguments, _Reading

NOBODY = "http://127.0.0.1:9"


def test_arguments_are_read_as_lines_are() -> None:
    keyed = _Reading(None, "who", ndjson=True, envelope=False)
    assert [tuple(line) for line in _arguments(['{"who": "a", "n": 1.50}'], keyed)] == [
        ("a", b'{"who": "a", "n": 1.50}', ())
    ]
    envelope = _Reading("k", None, ndjson=False, envelope=True)
    messages = ['{"key": "a", "value": "x"}', '{"value_text": "x"}', '{"key": null, "value": null}']
    assert [tuple(line) for line in _arguments(messages, envelope)] == [
        (b"a", b'"x"', ()), ("k", b"x", ()), (None, None, ()),
    ]  # fmt: skip
    with pytest.raises(BadLine, match="message 2 is not JSON"):
        _arguments(["1", "x"], _Reading(None, None, ndjson=True, envelope=False))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["publish", "t", "x", "--ndjson", "--url", NOBODY], "message 1 is not JSON"),
        (["publish", "t", "[]", "--key-field", "a", "--url", NOBODY], "is no JSON object"),
        (["publish", "t", "{}", "--envelope", "--url", NOBODY], "neither value"),
        (["publish", "t", "{}", "--envelope", "--ndjson"], "an envelope says all"),
    ],
)
def test_bad_messages_are_named_before_anything_is_sent(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo.cli.publish.RETRY_S", 0.1)
    assert run(arguments) != 0
    assert said in capsys.readouterr().err
