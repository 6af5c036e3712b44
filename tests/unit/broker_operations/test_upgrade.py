"""The request that begins a connection between brokers: what its proof covers, and repeats."""

from __future__ import annotations

import sys

import pytest

from octavo.broker.operations import upgrade as upgrades
from octavo.broker.operations.frames import keys_of
from octavo.broker.operations.upgrade import (
    FROM_HEADER,
    NONCE_HEADER,
    NONCES_KEPT,
    PATH,
    PROOF_HEADER,
    PROTOCOL,
    TO_HEADER,
    Nonces,
    Upgrade,
    headers_of,
    read_upgrade,
    request_head,
)

KEY = b"k" * 32
ASKED = Upgrade("b1", "b2", "0123456789abcdef" * 2)


def test_a_broker_that_has_the_key_is_believed() -> None:
    sent = headers_of(ASKED, KEY)
    assert read_upgrade(sent, KEY) == ASKED
    assert all(value.isascii() for value in sent.values())


def test_the_request_is_http_with_these_headers() -> None:
    first, *lines = request_head("b2:8080", ASKED, KEY).decode().split("\r\n")
    assert first == f"GET {PATH} HTTP/1.1"
    assert lines[-2:] == ["", ""]
    named = dict(line.split(": ", 1) for line in lines[:-2])
    assert named == {"Host": "b2:8080", "Connection": "Upgrade", **headers_of(ASKED, KEY)}
    assert read_upgrade(named, KEY) == ASKED


@pytest.mark.parametrize(
    "changed",
    [
        {FROM_HEADER: "b9"}, {TO_HEADER: "b9"}, {FROM_HEADER: "b1\0b2"}, {FROM_HEADER: "\udcff"},
        {NONCE_HEADER: "f" * 32}, {NONCE_HEADER: ""}, {NONCE_HEADER: ASKED.nonce.upper()},
        {PROOF_HEADER: "0" * 64}, {PROOF_HEADER: ""}, {PROOF_HEADER: "\udcff" * 64},
        {PROOF_HEADER: "\xe9" * 64}, {"Upgrade": "octavo-operations/4"}, {"Upgrade": "websocket"},
    ],
)  # fmt: skip
def test_nothing_of_it_can_be_changed_or_left_out(changed: dict[str, str]) -> None:
    sent = headers_of(ASKED, KEY)
    assert read_upgrade(sent | changed, KEY) is None
    assert read_upgrade({k: v for k, v in sent.items() if k not in changed}, KEY) is None


def test_names_cannot_be_moved_from_one_field_to_the_next() -> None:
    one, other = Upgrade("b", "1b2", ASKED.nonce), Upgrade("b1", "b2", ASKED.nonce)
    assert headers_of(one, KEY)[PROOF_HEADER] != headers_of(other, KEY)[PROOF_HEADER]
    back = Upgrade("b2", "b1", ASKED.nonce)
    assert headers_of(back, KEY)[PROOF_HEADER] != headers_of(ASKED, KEY)[PROOF_HEADER]


def test_another_key_or_another_use_of_the_key_proves_nothing() -> None:
    """Keys of frames are derived from the same secret and are no proofs of upgrades."""
    assert read_upgrade(headers_of(ASKED, b"o" * 32), KEY) is None
    assert read_upgrade({}, KEY) is None
    for key in keys_of(KEY, "b1", "b2", (ASKED.nonce, ASKED.nonce)):
        assert key.hex() != headers_of(ASKED, KEY)[PROOF_HEADER]


@pytest.mark.parametrize("version", [4, 6])
def test_a_proof_of_another_version_is_none(version: int) -> None:
    """Otherwise a connection could be made to begin with another protocol than both sides speak."""
    sent = headers_of(ASKED._replace(protocol=f"octavo-operations/{version}"), KEY)
    assert read_upgrade(sent, KEY) is None
    assert read_upgrade(sent | {"Upgrade": PROTOCOL}, KEY) is None


def test_a_nonce_is_new_once() -> None:
    nonces = Nonces()
    assert nonces.is_new("a")
    assert not nonces.is_new("a")
    assert nonces.is_new("b")
    assert not nonces.is_new("a")


def test_the_nonces_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "NONCES_KEPT", 10)
    nonces = Nonces()
    assert all(nonces.is_new(f"{n:032x}") for n in range(1000))
    assert len(nonces._seen) == 10
    assert not any(nonces.is_new(f"{n:032x}") for n in range(990, 1000)), "the newest are known"
    assert NONCES_KEPT * (sys.getsizeof("0" * 32) + 100) < 1 << 20
