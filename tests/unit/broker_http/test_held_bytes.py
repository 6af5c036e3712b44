"""Bytes of bodies: who waits for room goes on as soon as there is some, whatever is before it."""

from __future__ import annotations

import asyncio

import pytest

from octavo.broker.errors import Overloaded
from octavo.broker.http import held_bytes
from octavo.broker.http.held_bytes import HeldBytes
from tests.support.kit.quiescence import in_use


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_short_body_does_not_wait_for_the_long_one_before_it() -> None:
    """Room for a part of what waits is given to whom it suffices, also the second time."""
    held = HeldBytes(100)
    await held.take("a", 60)
    await held.take("b", 40)
    long = asyncio.create_task(held.take("c", 70))
    short = [asyncio.create_task(held.take("d", 15)) for _ in range(3)]
    await _turns()
    held.give_back("b", 20)
    await _turns()
    assert [one.done() for one in (long, *short)] == [False, True, False, False]
    held.give_back("b", 20)
    await _turns()
    assert [one.done() for one in (long, *short)] == [False, True, True, False]
    held.give_back("a", 60)
    await long
    held.give_back("c", 70)
    await asyncio.gather(*short)
    held.give_back("d", 45)
    assert in_use(held) == {}


@pytest.mark.parametrize(("size", "fits"), [(49, True), (50, True), (51, False)])
async def test_the_half_that_may_go_out_is_room_to_the_byte(size: int, fits: bool) -> None:
    assert HeldBytes(100).has_room_to_send(size) == fits


@pytest.mark.parametrize(("size", "fits"), [(74, True), (75, True), (76, False)])
async def test_a_peer_may_hold_three_quarters_to_the_byte(size: int, fits: bool) -> None:
    assert HeldBytes(100).try_take("a", size) == fits


@pytest.mark.parametrize(("size", "fits"), [(24, True), (25, True), (26, False)])
async def test_all_peers_together_may_hold_all_to_the_byte(size: int, fits: bool) -> None:
    held = HeldBytes(100)
    await held.take("a", 75)
    assert held.try_take("b", size) == fits


@pytest.mark.parametrize(("size", "fits"), [(29, True), (30, True), (31, False)])
def test_a_quota_of_memory_bounds_what_a_principal_holds(size: int, fits: bool) -> None:
    held = HeldBytes(100)
    held.quota_of = {"user:ann": 30}.get
    assert held.try_take("a", size, "user:ann") is fits
    assert held.try_take("b", 50, "user:bob"), "others have no quota"
    held.give_back("b", 50, "user:bob")
    if fits:
        held.give_back("a", size, "user:ann")
    assert in_use(held) == {}


@pytest.mark.parametrize(("size", "fits"), [(29, True), (30, True), (31, False)])
def test_a_quota_of_memory_bounds_what_is_held_for_a_namespace(size: int, fits: bool) -> None:
    """Of all its principals together, and whoever else has room."""
    held = HeldBytes(1000)
    held.quota_of = {"namespace:n": 100}.get
    assert held.try_take("a", 70, "user:ann", "namespace:n")
    assert held.try_take("b", size, "user:bob", "namespace:n") is fits
    assert held.try_take("b", 200, "user:bob", "namespace:other"), "no quota"
    assert held.try_take("b", 200, "user:bob")
    held.give_back("b", 200, "user:bob", "namespace:other")
    held.give_back("b", 200, "user:bob")
    if fits:
        held.give_back("b", size, "user:bob", "namespace:n")
    held.give_back("a", 70, "user:ann", "namespace:n")
    assert held.try_take("a", 100, "namespace:n"), "room again, to the byte"
    assert not held.try_take("a", 1, "namespace:n")
    held.give_back("a", 100, "namespace:n")
    assert in_use(held) == {}


@pytest.mark.parametrize("subjects", [("user:ann",), ("namespace:n",), ("user:ann", "namespace:n")])
async def test_the_refusal_names_each_limit_that_is_reached(
    monkeypatch: pytest.MonkeyPatch, subjects: tuple[str, ...]
) -> None:
    monkeypatch.setattr(held_bytes, "ROOM_WAIT_S", 0.0)
    held = HeldBytes(1000)
    held.quota_of = {"user:ann": 60, "namespace:n": 70}.get
    await held.take("a", 50, "user:ann", "namespace:n")
    with pytest.raises(Overloaded) as refusal:
        await held.take("a", 30, *subjects)
    for subject, most in (("user:ann", 60), ("namespace:n", 70)):
        said = f"50 of {subject}, whose quota of memory is {most}"
        assert (said in str(refusal.value)) is (subject in subjects)
    assert "no room for 30 more" in str(refusal.value)
    held.give_back("a", 50, "user:ann", "namespace:n")
    assert in_use(held) == {}, "a refusal leaves nothing behind"


async def test_a_body_waits_for_the_room_of_its_namespace() -> None:
    held = HeldBytes(1000)
    held.quota_of = {"namespace:n": 100}.get
    await held.take("a", 100, "namespace:n")
    waits = asyncio.create_task(held.take("b", 40, "user:bob", "namespace:n"))
    await _turns()
    assert not waits.done()
    held.give_back("a", 40, "namespace:n")
    await waits
    held.give_back("a", 60, "namespace:n")
    held.give_back("b", 40, "user:bob", "namespace:n")
    assert in_use(held) == {}
