"""The journal commits group after group until its queue is empty, and then counts nothing."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from typing import Any, cast

import pytest

from octavo.bookie.disk.files import DiskFull
from octavo.bookie.journal.journal import Journal
from tests.support.kit.quiescence import in_use


class AtOnce(Executor):
    def submit(self, call: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class Writer:
    """Takes groups: it is full, takes one, and is full again, as the test says."""

    file_id, offset, is_behind, short_of_space = 1, 0, False, False

    def __init__(self, full: list[bool]) -> None:
        self.full = full
        self.groups: list[bytes] = []

    def write(self, buffers: list[bytes], _length: int, _sync: bool) -> None:
        if self.full.pop(0):
            raise DiskFull("/j is full")
        self.groups.append(b"".join(buffers))


@pytest.mark.parametrize(
    "full", [[False] * 4, [True, False, True, False], [True] * 4], ids=["well", "again", "full"]
)
async def test_all_that_is_queued_is_committed_by_one_start(full: list[bool]) -> None:
    writer = Writer(list(full))
    journal = Journal(
        cast(Any, writer), executor=AtOnce(), group_bytes_max=10, on_fatal=lambda _: None,
        on_group=lambda _: None,
    )  # fmt: skip
    reported: list[str] = []
    for name in (b"a", b"b", b"c", b"d"):
        journal.append([name * 10], 10, lambda error: reported.append(type(error).__name__))
    assert in_use(journal) == {"bytes": 40, "buffers": 4}
    for _ in range(100):
        await asyncio.sleep(0)
    assert reported == ["DiskFull" if one else "NoneType" for one in full]
    assert len(writer.groups) == full.count(False), "a group holds ten bytes"
    assert in_use(journal) == {}
    assert journal.waits_in_vain() == ""
