"""A claim counts in the session that made it; a release takes back a claim that may be in force."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo.metadata.election import Ownership
from octavo.metadata.store import (
    MetadataUnavailable,
    Record,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    SessionState,
)


class Store:
    """Records of a path; the session may end at any call, before or after its effect."""

    def __init__(self, rng: random.Random) -> None:
        self.session_state = SessionState.CONNECTED
        self._rng = rng
        self._record: Record | None = None
        self._owner = self.session = 0
        self._listener: Callable[[SessionState], None] = lambda _: None

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        self._listener = listener

    @property
    def owner(self) -> int:
        """Return the session whose record exists, or 0."""
        return self._owner if self._record is not None else 0

    def _may_end(self) -> None:
        if self._owner < self.session and self._rng.random() < 0.3:
            self._record = None
        if self._rng.random() < 0.2:
            if self._owner == self.session and self._rng.random() < 0.5:
                self._record = None  # otherwise it goes a while later
            self.session += 1
            self._listener(SessionState.EXPIRED)

    async def create(self, _: str, value: bytes, *, ephemeral: bool) -> None:
        assert ephemeral
        self._may_end()
        if self._record is not None:
            raise RecordExists("there")
        self._record, self._owner = Record(value, 0), self.session
        self._may_end()

    async def get(self, _: str) -> Record:
        self._may_end()
        if self._record is None:
            raise RecordNotFound("none")
        return self._record

    async def delete(self, _: str, version: int) -> None:
        assert version == 0
        self._record = None


@pytest.mark.parametrize("seed", range(60))
async def test_what_is_held_is_the_present_sessions(seed: int) -> None:
    store: Any = Store(random.Random(seed))
    store.session = 1
    ownership = Ownership(store)
    for _ in range(20):
        try:
            claim = await ownership.claim("/o/1", b"us")
        except SessionExpired:
            assert not ownership.held("/o/1"), f"seed {seed}"
            continue
        if claim.held:
            assert store.owner == store.session, f"seed {seed}: a dead session's claim is believed"
        if store._rng.random() < 0.5:
            await ownership.release("/o/1")


class Silent(Store):
    """Loses the answer to each creation; no session ends."""

    def _may_end(self) -> None: ...

    async def create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        await super().create(path, value, ephemeral=ephemeral)
        raise MetadataUnavailable("no answer")


async def test_a_release_takes_a_claim_back_whose_answer_was_lost() -> None:
    """The record exists though its maker never heard so: other brokers could not get the
    partition."""
    store: Any = Silent(random.Random(0))
    store.session = 1
    ownership = Ownership(store)
    with pytest.raises(MetadataUnavailable):
        await ownership.claim("/o/1", b"us")
    assert store.owner == 1
    await ownership.release("/o/1")
    assert store.owner == 0
