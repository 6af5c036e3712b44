"""Calls between brokers: what their proof covers, that each is valid once, and its cost."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.broker.http.broker_calls import (
    ESCAPED_HEADER,
    FORWARDED_HEADER,
    IDENTITY_HEADER,
    INCARNATION_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    SEAL_HEADER,
    TARGET_HEADER,
    BrokerProof,
    Passed,
)
from octavo.broker.http.replays import RUNS_KEPT, WINDOW, Replays
from octavo.security.principal import ANONYMOUS, Identity
from tests.support.kit.examples import examples

KEY = b"k" * 32
ALICE = Identity("user:alïce", frozenset({"group:staff", "group:übung"}), "token", 1_800_000_000.5)
CALL = ("POST", "/v1/topics/public/one/messages?results=all")


def called(
    proof: BrokerProof, identity: Identity = ALICE, headers: dict[str, str] | None = None
) -> dict[str, str]:
    sent = dict(headers or {})
    proof.enter(sent, "b1", "b2", *CALL, identity)
    return sent


def secured(key: bytes = KEY, run: str = "a1") -> BrokerProof:
    return BrokerProof(key, run, lambda: True)


def test_who_calls_arrives() -> None:
    sender, receiver = secured(), secured(run="b2")
    for number in range(3):
        found = receiver.look(called(sender), *CALL)
        assert found == Passed("b2", ALICE, "a1", number)
    assert all(value.isascii() for value in called(sender).values())


@pytest.mark.parametrize(
    "changed",
    [
        {FORWARDED_HEADER: "b9"}, {TARGET_HEADER: "b9"}, {INCARNATION_HEADER: "other"},
        {ESCAPED_HEADER: "octavo-key"}, {NONCE_HEADER: "a1-1"}, {SEAL_HEADER: "0" * 64},
        {IDENTITY_HEADER: '["user:root", [], "token", null]'}, {SEAL_HEADER: "\udcff"},
        {IDENTITY_HEADER: ""}, {NONCE_HEADER: ""},
    ],
)  # fmt: skip
def test_nothing_of_it_can_be_changed(changed: dict[str, str]) -> None:
    sent = called(secured())
    assert secured().look(sent | changed, *CALL) is None
    without = {name: value for name, value in sent.items() if name not in changed}
    assert secured().look(without, *CALL) is None or without == sent


def test_another_call_or_key_is_not_proved() -> None:
    sent = called(secured())
    assert secured().look(sent, "GET", CALL[1]) is None
    assert secured().look(sent, CALL[0], CALL[1] + "&x=1") is None
    assert secured(b"o" * 32).look(sent, *CALL) is None
    assert secured().look({}, *CALL) is None


def test_brokers_of_0_1_and_of_today_believe_each_other_until_it_is_secured() -> None:
    """The former proof covers neither the caller nor a number."""
    is_secured = False
    today = BrokerProof(KEY, "a1", lambda: is_secured)
    sent = called(today)
    former = {name: sent[name] for name in (FORWARDED_HEADER, TARGET_HEADER, PROOF_HEADER)}
    assert today.look(former, *CALL) == Passed("b2", ANONYMOUS)
    # Removing the seal gains no rights, as long as none are demanded.
    assert today.look(former | {IDENTITY_HEADER: sent[IDENTITY_HEADER]}, *CALL) == Passed(
        "b2", ANONYMOUS
    )
    is_secured = True
    assert today.look(former, *CALL) is None
    assert PROOF_HEADER not in called(today)


def test_the_former_proof_is_that_of_0_1() -> None:
    import hashlib
    import hmac

    sent = called(BrokerProof(KEY, "a1"), headers={INCARNATION_HEADER: "i1"})
    fields = (*CALL, "b1", "b2", "i1", "")
    expected = hmac.digest(KEY, "\0".join(fields).encode(), hashlib.sha256).hex()
    assert sent[PROOF_HEADER] == expected
    assert sent[SEAL_HEADER] != expected


# ---- replays


@given(st.lists(st.integers(0, 3 * WINDOW), max_size=200))
@settings(deadline=None, max_examples=examples(50))
def test_each_number_is_new_once_whatever_its_order(numbers: list[int]) -> None:
    replays, came, highest = Replays(), set[int](), -1
    for number in numbers:
        is_new = replays.is_new("a", number)
        assert is_new == (number not in came and number > highest - WINDOW)
        came.add(number)
        highest = max(highest, number)


def test_calls_that_overtake_each_other_are_all_let_in() -> None:
    rng, replays = random.Random(7), Replays()
    numbers = sorted(range(20_000), key=lambda number: number + rng.randrange(5_000))
    assert all(replays.is_new("a", number) for number in numbers)
    assert not any(replays.is_new("a", number) for number in numbers)


def test_runs_do_not_disturb_each_other() -> None:
    replays = Replays()
    for run in ("a", "b"):
        assert replays.is_new(run, 7)
        assert not replays.is_new(run, 7)


def test_its_memory_is_bounded() -> None:
    replays = Replays()
    for run in range(3 * RUNS_KEPT):
        for number in (0, WINDOW - 1, 2**40, 2**40 + WINDOW // 2):
            replays.is_new(f"{run:x}", number)
    assert len(replays._windows) == RUNS_KEPT
    held = sum(sys.getsizeof(came) for _, came in replays._windows.values())
    assert held < RUNS_KEPT * (WINDOW // 7)
    newest = f"{3 * RUNS_KEPT - 1:x}"
    assert not replays.is_new(newest, 2**40), "those that called last are remembered"
