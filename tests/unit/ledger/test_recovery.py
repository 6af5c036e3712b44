"""The meaning of a bookie's answer to a recovery: a denial, a fence, or nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from octavo.ledger.actions import WriteBack
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.options import LedgerOptions
from octavo.ledger.recover.recovery import _BUSY_PAUSE_S, Recovery
from octavo.protocol.codes import (
    BookieIOError,
    Code,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    OctavoError,
    Unauthorized,
    UnknownState,
)

NOTHING = (BookieIOError("disk"), BookieUnavailable("a", "down"), DigestMismatch("damaged"))


class Core:
    """Notes its input, and asks for nothing."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def told(*_: object) -> list[Any]:
            self.told.append(name)
            return []

        return told


async def recovery_told(answer: object) -> tuple[Recovery, Core]:
    """Bookie a is ours, b is foreign."""
    bookies = SimpleNamespace(get=lambda name, _: SimpleNamespace(is_ours=name == "a"))
    client: Any = SimpleNamespace(options=LedgerOptions(), bookies=bookies)
    recovery, core = Recovery(client, 7, b""), Core()
    patched: Any = recovery
    patched._core = core
    patched._ask = lambda bookie_id, entry_id, done: done(answer)
    return recovery, core


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        ((5, 4), "fenced"),
        (NoSuchEntry("none"), "fenced"),
        (NoSuchLedger("none"), "fenced"),
        (UnknownState("in limbo"), "fence_unknown"),
        (Unauthorized("another key"), "squatted"),
        *((error, "fence_failed") for error in NOTHING),
    ],
)
async def test_what_the_answer_to_a_fence_means(answer: object, means: str) -> None:
    """A bookie in limbo is fenced and takes write-backs; a failed bookie is replaced."""
    recovery, core = await recovery_told(answer)
    async with asyncio.timeout(10):
        await recovery._fence("a")
    assert core.told == [means]


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        ((b"entry", 5), "entry_found"),
        (NoSuchEntry("none"), "entry_absent"),
        (NoSuchLedger("none"), "entry_absent"),
        (Unauthorized("another key"), "entry_absent"),
        *((error, "entry_unknown") for error in (*NOTHING, UnknownState("in limbo"))),
    ],
)
async def test_what_the_answer_to_a_read_means(
    answer: tuple[bytes, int] | OctavoError, means: str
) -> None:
    recovery, core = await recovery_told(answer)
    recovery._read(3, "a")
    assert core.told == [means]


async def test_of_a_foreign_bookie_a_wrong_key_says_nothing() -> None:
    """Our bookie says so when that key is durable; a foreign one's answer proves nothing."""
    recovery, core = await recovery_told(Unauthorized("another key"))
    async with asyncio.timeout(10):
        await recovery._fence("b")
    recovery._read(3, "b")
    assert core.told == ["fence_failed", "entry_unknown"]


async def test_after_its_end_it_listens_to_nobody() -> None:
    """A listener that is added after the end would stay for ever."""
    listened: list[object] = []
    bookie = Mock(listen=listened.append, unlisten=listened.remove)
    client: Any = SimpleNamespace(
        options=LedgerOptions(), bookies=SimpleNamespace(get=lambda *_: bookie)
    )
    recovery = Recovery(client, 7, b"")
    patched: Any = recovery
    patched._with = lambda *_: None
    recovery.add_refused("a", Code.TOO_MANY_REQUESTS, 0, 0)
    recovery._stop()
    await asyncio.sleep(2 * _BUSY_PAUSE_S)
    recovery._perform([WriteBack(0, "a", 0, 0)])
    assert not listened
