"""Reads that wait for room are woken each time there is some; lists give their turn back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.bookie.back_pressure import Budget
from octavo.bookie.read.cache import ReadCache
from octavo.bookie.read.path import ReadPath
from octavo.bookie.stats import ReadStats
from octavo.bookie.write.cache import WriteCache
from octavo.protocol.codes import BookieIOError, TooManyRequests
from tests.support.kit.quiescence import in_use
from tests.support.storage_support import make_run

LEDGER = 1


class Cold:
    """Returns the intervals, or fails, as the test says."""

    wait_s_max = 600.0

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def intervals(self, _: int) -> list[tuple[int, int]]:
        if self.error is not None:
            raise self.error
        return [(0, 1)]


def path_of(answers: Budget, cold: Cold) -> ReadPath:
    cache = WriteCache(1 << 20)
    cache.active.put(make_run(LEDGER, 0, [b"a", b"b"]))
    control: Any = SimpleNamespace(
        known=lambda _: None, deny=lambda *_: None, sure=lambda *_: None, last_entry=lambda _: 1
    )
    return ReadPath(
        control, cache, ReadCache(1 << 20), cast(Any, cold), answers, ReadStats().lookups
    )


async def turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_all_who_wait_for_room_are_woken_also_after_it_was_taken_again() -> None:
    answers = Budget(100)
    reads = path_of(answers, Cold())
    answers.change(100)
    waiting: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(reads.read_many(LEDGER, 0, 2, 1 << 20)) for _ in range(3)
    ]
    waiting.append(asyncio.ensure_future(reads.entries(LEDGER)))
    await turns()
    for _ in range(3):
        assert in_use(reads) == {"waiting": 4}
        answers.change(-100)
        answers.change(100)
        await turns()
        assert not any(one.done() for one in waiting)
    answers.change(-1)
    await turns()
    assert [len(one.result()) for one in waiting] == [2, 2, 2, 1]
    assert in_use(reads) == {}
    assert reads.waits_in_vain() == ""


@pytest.mark.parametrize("ends", ["well", "with an error", "for want of room", "cancelled"])
async def test_a_list_gives_its_turn_back(ends: str) -> None:
    """After two lists that kept their turns, each list was refused."""
    answers, cold = Budget(100), Cold()
    reads = path_of(answers, cold)
    for _ in range(5):
        cold.error = BookieIOError("entry log 1") if ends == "with an error" else None
        if ends in ("for want of room", "cancelled"):
            answers.change(100)
            cold.wait_s_max = 0.01 if ends == "for want of room" else 600.0
        task = asyncio.ensure_future(reads.entries(LEDGER))
        await turns()
        if ends == "cancelled":
            task.cancel()
        elif not answers.is_spent:
            assert task.done(), "there is a turn for it"
        await asyncio.wait([task])
        if ends == "well":
            assert task.result() == [(0, 1)]
        elif ends == "cancelled":
            assert task.cancelled()
        else:
            assert isinstance(task.exception(), BookieIOError | TooManyRequests)
        answers.change(-answers.used)
    cold.error, cold.wait_s_max = None, 600.0
    another = asyncio.ensure_future(reads.entries(LEDGER))
    await turns()
    assert another.done(), "there is a turn for it"
    assert another.result() == [(0, 1)]
    assert in_use(reads) == {}
