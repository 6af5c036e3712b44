"""One among many: ownership of a name, and leadership, by records that vanish with their session.

Neither is a lock. Between the end of a session and the moment when its owner hears of it two
processes may both believe; what must be exclusive is made so by fencing (ledger protocol), and
these only say who should try.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from octavo.metadata.paths import name_of
from octavo.metadata.store import (
    MetadataError,
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
_RETRY_DELAY_S = 0.1


class Claim(NamedTuple):
    """The outcome of a claim."""

    held: bool
    """Ours now, in the present session."""
    owner: bytes
    """The owner's value: ours when held."""


class Ownership:
    """The ephemeral records that one process holds. One object per store and process.

    A value must name the process (its id and a run of its own): a record with our own value that
    this session did not write is taken for a leftover of our previous session and replaced.
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
        """Call `listener(path)` for every path held when the session turns out to be over."""
        self._lost_listeners.append(listener)

    def held(self, path: str) -> bool:
        """Whether `path` is ours as far as this process knows.

        False from the moment when the session is known to be over; while it is SUSPENDED the
        answer may be out of date.
        """
        return path in self._held and self._store.session_state is not SessionState.EXPIRED

    async def claim(self, path: str, value: bytes) -> Claim:
        """Make `path` ours if it has no owner.

        Raises `MetadataUnavailable` when the outcome is unknown (claim again to find out), and
        `SessionExpired` when the session ended meanwhile: such a claim is never believed.
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
        """Give `path` up; fine when it is not ours any more."""
        if path not in self._sent:
            return
        # Also when the claim's outcome was never learnt: it may stand.
        self._held.discard(path)
        value = self._sent.pop(path)
        # Only our own record: after an expiry that we have not heard of it may be another's.
        with contextlib.suppress(RecordNotFound, VersionConflict, SessionExpired):
            record = await self._store.get(path)
            if record.value == value:
                await self._store.delete(path, record.version)

    async def owner(self, path: str) -> bytes | None:
        """The present owner's value, or None."""
        try:
            return (await self._store.get(path)).value
        except RecordNotFound:
            return None

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after `path` got an owner or lost it."""
        return self._store.watch(path, on_change)


class LeaderElection:
    """Candidates below one path; the one with the lowest sequence number leads.

    `on_change(True)` and `on_change(False)` come on the event loop as leadership is won and lost;
    a lost session is a lost leadership at once, and the candidate stands again by itself.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        value: bytes,
        on_change: Callable[[bool], None],
    ) -> None:
        self._store = store
        self._path = path
        self._value = value
        self._on_change = on_change
        self._candidate: str | None = None
        self._leads = False
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        store.on_session(self._on_session)

    @property
    def leads(self) -> bool:
        """Whether this candidate leads as far as it knows."""
        return self._leads

    async def start(self) -> None:
        """Stand for election."""
        assert self._task is None
        self._watch = self._store.watch_children(self._path, self._look.set)
        self._look.set()
        self._task = asyncio.create_task(self._run(), name=f"election {self._path}")
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stand down. Close the election before its store.

        Raises `MetadataUnavailable` when the candidate's record may be left until the session ends.
        """
        if self._task is None:
            return
        self._watch.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._set(False)
        candidate, self._candidate = self._candidate, None
        if candidate is not None:
            with contextlib.suppress(RecordNotFound, SessionExpired):
                await self._store.delete(candidate)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._set(False)
            task.get_loop().call_exception_handler(
                {"message": f"the election {self._path} ended", "exception": error}
            )

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._candidate = None
            self._set(False)
        self._look.set()

    def _set(self, leads: bool) -> None:
        if leads is not self._leads:
            self._leads = leads
            self._on_change(leads)

    async def _run(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self._evaluate()
            except MetadataError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(_RETRY_DELAY_S)
                self._look.set()

    async def _evaluate(self) -> None:
        candidate = self._candidate or await self._stand()
        names = await self._store.children(self._path)
        # The session may have ended while we looked: then this candidate is none any more.
        if candidate != self._candidate:
            self._look.set()
            return
        if name_of(candidate) not in names:
            self._candidate = None
            self._set(False)
            self._look.set()
            return
        self._set(min(names) == name_of(candidate))

    async def _stand(self) -> str:
        # A lost reply leaves a candidate nobody knows of. Ours is recognised by its value, so that
        # it cannot lead unattended for as long as the session lives.
        for name in await self._store.children(self._path):
            with contextlib.suppress(RecordNotFound):
                path = f"{self._path}/{name}"
                if (await self._store.get(path)).value == self._value:
                    await self._store.delete(path)
        self._candidate = await self._store.create(
            f"{self._path}/V_", self._value, ephemeral=True, sequence=True
        )
        return self._candidate
