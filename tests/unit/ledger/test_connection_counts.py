"""A connection tells its owner each time when adds may be sent again, and keeps no answered
request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from octavo.ledger.bookies.connection import BookieConnection
from octavo.ledger.errors import BookieUnavailable
from octavo.protocol.codes import Code, OctavoError
from octavo.protocol.entry import Buffer
from octavo.protocol.extension import Op, encode_answer
from octavo.protocol.frames import read_answer
from tests.support.kit.quiescence import in_use


class Transport:
    def __init__(self) -> None:
        self.written = 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def writelines(self, frames: Iterable[Buffer]) -> None:
        self.written += sum(map(len, frames))

    def abort(self) -> None: ...


class Owner:
    def __init__(self) -> None:
        self.told = 0

    def connection_writable(self) -> None:
        self.told += 1

    def connection_lost(self, error: BookieUnavailable) -> None: ...


def connected() -> tuple[BookieConnection, Owner, Transport]:
    owner, transport = Owner(), Transport()
    one = BookieConnection("b1", owner, bytearray(65_536), timeout_s=600, buffer_bytes_max=100)
    one.connection_made(cast(Any, transport))
    return one, owner, transport


async def test_each_flush_of_a_full_buffer_tells_the_owner() -> None:
    """The writer stops at a full buffer and has no tick."""
    one, owner, transport = connected()
    for times in range(1, 4):
        one.send_adds((b"x" * 60, b"y" * 40), 100)
        assert not one.writable
        await asyncio.sleep(0)
        assert one.writable
        assert (owner.told, transport.written) == (times, 100 * times)
    one.send_adds((b"x" * 99,), 99)
    assert one.writable, "one byte below the bound"
    await asyncio.sleep(0)
    assert owner.told == 3, "the owner was not kept waiting"
    assert in_use(one) == {}


async def test_a_socket_that_takes_bytes_again_tells_the_owner_each_time() -> None:
    one, owner, _ = connected()
    for times in range(1, 4):
        one.pause_writing()
        one.send_adds((b"x" * 100,), 100)
        await asyncio.sleep(0)
        assert (one.writable, owner.told) == (False, times - 1)
        one.resume_writing()
        assert (one.writable, owner.told) == (True, times)


async def test_answered_requests_are_not_kept() -> None:
    one, _, _ = connected()
    answers: list[OctavoError | None] = []

    def done(error: OctavoError | None, _: object) -> None:
        answers.append(error)

    for _ in range(3):
        one.request(Op.NODE_INFO, {}, done)
    one.read(7, 0, done)
    one.read(7, 0, done)
    assert in_use(one)["requests"] == 3
    assert in_use(one)["reads"] == 2
    codes = {3: Code.OK, 1: Code.TOO_MANY_REQUESTS, 2: Code.OK}
    frames = [encode_answer(Op.NODE_INFO, number, code, {}) for number, code in codes.items()]
    frames += [read_answer(Code.NO_ENTRY, 7, 0, b"")] * 2
    for frame in frames:
        one.get_buffer(-1)[: len(frame)] = frame
        one.buffer_updated(len(frame))
    await asyncio.sleep(0)
    assert [error is None for error in answers] == [True, False, True, False, False]
    assert in_use(one) == {}
