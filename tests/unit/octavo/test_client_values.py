"""What comes out of an answer to `receive`, byte for byte; and where a client is of use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.client.errors import InvalidCall
from octavo.client.sync import Client
from octavo.client.types import TopicName, decode_deliveries, to_bytes


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"value": {"a" :1.50}', b'{"a" :1.50}'),
        ('"value": "text \\u00e9"', b'"text \\u00e9"'),
        ('"value_text": "text \\u00e9"', "text é".encode()),
        ('"value": 1.5, "value_text": "1.50"', b"1.50"),
        ('"value": 12345678901234567890', b"12345678901234567890"),
        ('"value": null', None),
        ('"value_base64": "//4="', b"\xff\xfe"),
        ('"key": "k"', None),
    ],
)
def test_values(written: str, value: bytes | None) -> None:
    body = (
        '{"messages": [{"partition": 1, "offset": 2, "id": "3:4:5", "timestamp": 6, '
        f'"ack_id": "x", "delivery_count": 2, {written}}}]}}'
    )
    (found,), _ = decode_deliveries({}, body.encode())
    assert found.value == value
    assert (found.partition, found.offset, found.id, found.timestamp_ms) == (1, 2, "3:4:5", 6)
    assert (found.ack_id, found.delivery_count) == ("x", 2)


def test_keys_and_headers() -> None:
    body = (
        b'{"messages": [{"partition": 0, "offset": 0, "id": "", "ack_id": "", "key_base64": "/w==",'
        b' "value": 1, "headers": {"a": ["1", null], "b": {"base64": "/w=="}}}]}'
    )
    (found,), _ = decode_deliveries({}, body)
    assert found.key == b"\xff"
    assert found.headers == (("a", b"1"), ("a", None), ("b", b"\xff"))
    assert found.json() == 1


def test_values_in() -> None:
    assert to_bytes(b"x") == b"x"
    assert to_bytes("é") == "é".encode()
    assert to_bytes({"a": [1, None]}) == b'{"a":[1,null]}'
    assert to_bytes(None) is None
    assert TopicName.of("a/b") == ("a", "b")
    assert TopicName.of("b") == ("public", "b")


def test_a_client_that_is_closed_says_so() -> None:
    client = Client("http://127.0.0.1:9")
    client.close()
    client.close()
    with pytest.raises(InvalidCall, match="is closed: make a new one"):
        client.topics()


def test_a_child_of_fork_has_no_part_of_a_client() -> None:
    """It would wait for ever for a thread that is not there."""
    program = """
import os, sys
from octavo import Client, InvalidCall
client = Client("http://127.0.0.1:9", retry_s=0)
child = os.fork()
if child == 0:
    try:
        client.topics()
    except InvalidCall as error:
        print(error, flush=True)
    client.close()
    os._exit(0)
os.waitpid(child, 0)
client.close()
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "which a fork has made: make a new one there" in run.stdout
