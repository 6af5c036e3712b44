"""Ownership of a name, by a record that vanishes with its session.

It is not a lock: before its owner learns that a session has ended, two processes may both believe
that they own the name. Fencing excludes; election only says which process should try.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from octavo.metadata.store import (
    MetadataStore,
    MetadataUnavailable,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    SessionState,
    VersionConflict,
    Watch,
)

_CLAIMS_TRIED_MAX = 4


class Claim(NamedTuple):
    held: bool
    owner: bytes


class Ownership:
    """The ephemeral records that a process holds; one object per store.

    A value names the process's run: with it, an earlier session's record is recognized and
    replaced.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._sent: dict[str, bytes] = {}
        self._held: set[str] = set()
        self._generation = 0
        self._lost_listeners: list[Callable[[str], None]] = []
        store.on_session(self._on_session)

    def _on_session(self, state: SessionState) -> None:
        if state is not SessionState.EXPIRED:
            return
        self._generation += 1
        self._sent.clear()
        lost, self._held = self._held, set()
        for path in sorted(lost):
            for listener in tuple(self._lost_listeners):
                listener(path)

    def on_lost(self, listener: Callable[[str], None]) -> None:
        """Call `listener(path)` for every path held when the session is found to be over."""
        self._lost_listeners.append(listener)

    def held(self, path: str) -> bool:
        """Whether the path is held; False after a known end of the session.

        While the session is SUSPENDED, the answer may be out of date.
        """
        return path in self._held and self._store.session_state is not SessionState.EXPIRED

    async def claim(self, path: str, value: bytes) -> Claim:
        """Claim a path; call again after `MetadataUnavailable`.

        After `SessionExpired` the claim does not count.
        """
        generation = self._generation
        for _ in range(_CLAIMS_TRIED_MAX):
            with contextlib.suppress(RecordNotFound, VersionConflict):
                claim = await self._try_claim(path, value, generation)
                if claim is not None:
                    return claim
        raise MetadataUnavailable(f"{path}: its owner changed {_CLAIMS_TRIED_MAX} times meanwhile")

    async def _try_claim(self, path: str, value: bytes, generation: int) -> Claim | None:
        sent_before = self._sent.get(path) == value
        self._sent[path] = value
        try:
            await self._store.create(path, value, ephemeral=True)
        except RecordExists:
            record = await self._store.get(path)
            self._check(path, generation)
            if record.value != value:
                self._sent.pop(path, None)
                return Claim(False, record.value)
            if not sent_before and path not in self._held:
                await self._store.delete(path, record.version)
                self._sent.pop(path, None)
                return None
        self._check(path, generation)
        self._held.add(path)
        return Claim(True, value)

    def _check(self, path: str, generation: int) -> None:
        if generation != self._generation:
            raise SessionExpired(f"the session ended while {path} was being claimed")

    async def release(self, path: str) -> None:
        if path not in self._sent:
            return
        # The record may exist even if the claim's outcome is unknown.
        self._held.discard(path)
        value = self._sent.pop(path)
        # After an unnoticed expiry it may be another owner's.
        with contextlib.suppress(RecordNotFound, VersionConflict, SessionExpired):
            record = await self._store.get(path)
            if record.value == value:
                await self._store.delete(path, record.version)

    async def owner(self, path: str) -> bytes | None:
        try:
            return (await self._store.get(path)).value
        except RecordNotFound:
            return None

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._store.watch(path, on_change)
