"""Room for bodies: shares, slow bodies, and that every call gives all of it back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from octavo.broker.errors import Overloaded
from octavo.broker.http import call as call_module
from octavo.broker.http import held_bytes
from octavo.broker.http.held_bytes import PACE_FULL_BYTES_S, HeldBytes, pace_least
from octavo.broker.operations.quotas import share_of
from octavo.security.principal import ANONYMOUS, Identity
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.http_api import until
from tests.support.memory_cluster import running

TOPIC = "/v1/topics/public/one"


def test_the_more_is_taken_the_faster_a_body_has_to_come() -> None:
    assert pace_least(0, 1000) == pace_least(500, 1000) == 0
    assert 0 < pace_least(501, 1000) < pace_least(750, 1000) < pace_least(999, 1000)
    assert pace_least(1000, 1000) == PACE_FULL_BYTES_S


async def test_a_principal_has_half_from_however_many_addresses() -> None:
    held = HeldBytes(1000)
    for address in range(5):
        assert held.try_take(f"10.0.0.{address}", 100, "user:mallory")
    assert not held.try_take("10.0.0.9", 1, "user:mallory")
    assert held.try_take("10.0.0.1", 100, "user:alice"), "of the same address"
    assert held.try_take("10.0.0.1", 100), "nobody is known: the address alone counts"
    held.give_back("10.0.0.1", 100, "user:mallory")
    assert held.try_take("10.0.0.9", 100, "user:mallory")
    assert share_of(ANONYMOUS) == ""
    assert share_of(Identity("user:alice")) == "user:alice"


@pytest.mark.parametrize("seed", range(20))
async def test_all_of_it_is_given_back(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Also after a wait, a refusal or a cancellation: no bytes are left, and no call waits on."""
    monkeypatch.setattr(held_bytes, "ROOM_WAIT_S", 0.01)
    rng = random.Random(seed)
    held = HeldBytes(100)
    held.quota_of = {"namespace:n": 45}.get

    async def body() -> None:
        peer = rng.choice("ab")
        subjects = rng.choice(
            [(), ("user:a",), ("user:b",), ("namespace:n",), ("user:a", "namespace:n")]
        )
        mine = 0
        try:
            for _ in range(rng.randint(1, 6)):
                size = rng.randint(1, 40)
                await held.take(peer, size, *subjects)
                mine += size
                assert held.total <= 100
                assert held._by_subject["namespace:n"] <= 45
                await asyncio.sleep(rng.choice([0, 0, 0.001]))
        finally:
            held.give_back(peer, mine, *subjects)

    tasks = [asyncio.create_task(body()) for _ in range(40)]
    for task in tasks:
        await asyncio.sleep(rng.choice([0, 0.001]))
        if rng.random() < 0.3:
            task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in found if one is not None} <= {asyncio.CancelledError, Overloaded}
    assert (held.total, held._by_peer, held._by_subject, held._waiting) == (0, {}, {}, {})


async def test_waiters_that_gave_up_are_forgotten_while_the_room_stays_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each refused call left a future behind until some room was given back."""
    monkeypatch.setattr(held_bytes, "ROOM_WAIT_S", 0.0)
    held = HeldBytes(100)
    await held.take("a", 70)
    for _ in range(50):
        with pytest.raises(Overloaded, match="70 of them from a"):
            await held.take("a", 40)
    assert not held._waiting


async def test_a_body_that_trickles_loses_its_place_and_another_ones_sender_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_module, "PACE_OVER_S", 0.2)
    async with running(1, bodies_bytes_max=1_000_000, body_bytes_max=800_000) as one:
        assert (await one.api.put(TOPIC)).status == 201
        held = one.servers[0]._services.held
        host, _, port = one.api.url.removeprefix("http://").partition(":")

        async def sender(size: int) -> tuple[Any, Any]:
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {TOPIC}/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 700000\r\n\r\n"
            writer.write(head.encode() + bytes(size))
            return reader, writer

        small, small_writer = await sender(1_000)
        big, big_writer = await sender(690_000)
        await until(lambda: held.total >= 691_000)
        while not big.at_eof():  # both send a byte now and then
            small_writer.write(b"x")
            if not big_writer.is_closing():
                big_writer.write(b"x")
            if big._buffer:
                break
            await asyncio.sleep(0.02)
        assert b" 408 " in await big.readline()
        assert not small._buffer, "what holds little may take its time"
        small_writer.close()
        big_writer.close()
        await until(lambda: not held.total)
        assert not held._by_peer


async def test_a_known_principal_is_told_whose_share_is_full() -> None:
    authority = FakeAuthority()
    async with running(
        1, bodies_bytes_max=100_000, authority=authority, authenticator=FakeAuthenticator()
    ) as one:
        assert (await one.api.put(TOPIC)).status == 201
        authority.secure("allow user:* all *")
        one.servers[0]._services.held.try_take("10.9.9.9", 40_000, "user:mallory")
        body, path = b"x" * 20_000, f"{TOPIC}/messages"
        answer = await one.api.post(path, body, "text/plain", headers=as_user("mallory"))
        assert answer.status == 429, answer
        assert "40000 of user:mallory" in answer.json()["detail"]
        answer = await one.api.post(path, body, "text/plain", headers=as_user("alice"))
        assert answer.status == 200, answer
