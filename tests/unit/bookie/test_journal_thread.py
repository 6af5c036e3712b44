"""The journal's thread: calls in order, answers in the loop, nothing after the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from octavo.bookie.journal.thread import JournalThread


@pytest.fixture
def thread() -> Iterator[JournalThread]:
    found = JournalThread("octavo-journal-test")
    yield found
    found.shutdown()


async def test_calls_are_made_in_order_and_on_one_thread(thread: JournalThread) -> None:
    loop = asyncio.get_running_loop()
    made: list[tuple[int, str]] = []

    def call(number: int) -> int:
        made.append((number, threading.current_thread().name))
        if number == 3:
            raise OSError("disk")
        return number * 10

    found = await asyncio.gather(
        *(loop.run_in_executor(thread, call, number) for number in range(6)), return_exceptions=True
    )
    assert made == [(number, "octavo-journal-test") for number in range(6)]
    assert [repr(one) for one in found] == ["0", "10", "20", "OSError('disk')", "40", "50"]


async def test_what_is_cancelled_before_its_turn_is_not_made(thread: JournalThread) -> None:
    loop = asyncio.get_running_loop()
    go_on = threading.Event()
    made: list[int] = []
    first = loop.run_in_executor(thread, go_on.wait)
    second = loop.run_in_executor(thread, made.append, 2)
    third = loop.run_in_executor(thread, made.append, 3)
    second.cancel()
    go_on.set()
    await asyncio.gather(first, third)
    assert made == [3]


async def test_one_that_is_cancelled_while_it_is_made_ends_quietly(thread: JournalThread) -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    begun, go_on = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        go_on.wait()

    one = loop.run_in_executor(thread, call)
    await asyncio.to_thread(begun.wait)
    one.cancel()
    go_on.set()
    assert await loop.run_in_executor(thread, lambda: 7) == 7
    assert one.cancelled()
    assert errors == []


async def test_after_its_end_it_takes_nothing_and_has_made_what_it_took() -> None:
    thread = JournalThread("octavo-journal-test")
    loop = asyncio.get_running_loop()
    made: list[int] = []
    taken = [loop.run_in_executor(thread, made.append, number) for number in range(5)]
    thread.shutdown(wait=True)
    assert made == [0, 1, 2, 3, 4]
    await asyncio.gather(*taken)
    with pytest.raises(RuntimeError, match="octavo-journal-test takes no more calls"):
        loop.run_in_executor(thread, made.append, 9)


def test_a_loop_that_closed_meanwhile_is_no_error(
    thread: JournalThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    go_on = threading.Event()

    async def leave() -> None:
        asyncio.get_running_loop().run_in_executor(thread, go_on.wait)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    go_on.set()
    thread.shutdown(wait=True)
    assert died == []
