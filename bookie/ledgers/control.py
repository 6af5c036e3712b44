"""Admit adds, fence, take explicit LACs and delete ledgers; all of these are journaled.

- The first key seen is the ledger's key; a caller with another can neither write nor fence.
- A fence holds from the call on, and is durable before it is answered. In the journal it comes
  after the adds that were admitted earlier, so these are answered first (P23–P25).
- A deleted ledger never takes an add again (BookKeeper #4462).
- A change is in memory when the journal reports its record: a checkpoint that moves the mark past
  the record must find it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from functools import partial

from octavo.bookie.adds import AddBatch
from octavo.bookie.disk.files import DiskFull
from octavo.bookie.journal.format import Meta, MetaOp, encode_meta
from octavo.bookie.journal.journal import Journals
from octavo.bookie.ledgers import rules as ledger_rules
from octavo.bookie.ledgers.ledger_admission import LedgerAdmission
from octavo.bookie.ledgers.limbo import Limbo
from octavo.bookie.ledgers.rules import Fate, FenceStep
from octavo.bookie.ledgers.state import LedgerState, LedgerStates
from octavo.protocol.codes import (
    BookieError,
    BookieIOError,
    Code,
    NoSuchLedger,
    ReadOnly,
    TooManyRequests,
    Unauthorized,
    UnknownState,
)
from octavo.protocol.entry import INVALID_ENTRY_ID, MASTER_KEY_BYTES
from octavo.protocol.frames import ADD_PREFIX_BYTES

_OK = Code.OK
_LAC = struct.Struct(">q")
_LAC_AT = ADD_PREFIX_BYTES + 16


class LedgerControl:
    """Decides about adds, fences, explicit LACs and deletions; used on the loop only."""

    def __init__(
        self,
        states: LedgerStates,
        journals: Journals,
        on_deleted: Callable[[int], None],
        limbo: Limbo | None = None,
        unlisted_max: int = 20_000,
        unsure_deletions: Iterable[int] = (),
    ) -> None:
        self._states = states
        self.ledger_admission = LedgerAdmission(states, unlisted_max)
        """Decides whether a ledger that is new here may begin."""
        self.limbo = limbo or Limbo()
        """The ledgers about which this bookie must deny nothing."""
        self._on_deleted = on_deleted
        self._journals = journals
        self._fences: dict[int, asyncio.Future[None]] = {}
        self._unsure_fences: set[int] = set()
        self._deletions: dict[int, asyncio.Future[None]] = {}
        self._unsure_deletions: dict[int, None] = dict.fromkeys(unsure_deletions)
        self._watches = LacWatches()

    def describe(self) -> dict[str, int]:
        return {"fences": len(self._fences), "deletions": len(self._deletions)}

    def waits_in_vain(self) -> str:
        """Name work that could run; empty when there is none."""
        for ledger_id, lowest in self._watches.lowest().items():
            state = self._states.get(ledger_id)
            if state is not None and state.last_add_confirmed > lowest:
                return f"a poll of ledger {ledger_id} waits for a LAC that is there"
        return ""

    # Adds

    def admit(self, batch: AddBatch, *, read_only: bool) -> Code | None:
        """Decide whether a batch may be journaled; create the ledger's state if needed.

        None means yes, but some entries may be here already: see write/duplicate_adds.py.
        """
        code = self.admission(batch, read_only=read_only)
        if code is not _OK:
            return code
        first = batch.first_entry
        last = first + batch.count - 1
        state = self._states.get(batch.ledger_id)
        if state is None:
            if not self.ledger_admission.may_begin(batch.ledger_id):
                return Code.TOO_MANY_REQUESTS
            state = self._states.create(batch.ledger_id, batch.key)
        reached = state.reached
        if last > reached:
            state.reached = last
        return _OK if first > reached else None

    def admission(self, batch: AddBatch, *, read_only: bool) -> Code:
        state = self._states.get(batch.ledger_id)
        limbo = self.limbo
        unsure = batch.ledger_id <= limbo.unsure_through and limbo.may_have_fenced(
            batch.ledger_id, known=state is not None
        )
        return ledger_rules.admission(state, batch, read_only=read_only, unsure=unsure)

    def stored(self, batch: AddBatch) -> bool:
        """Note a durable batch; False if the ledger was deleted meanwhile."""
        ledger_id = batch.ledger_id
        state = self._states.get(ledger_id)
        if state is None or state.deleted:
            return False
        if _note_stored(state, batch):
            self._watches.moved(ledger_id, state.last_add_confirmed)
        self._states.touch(ledger_id)
        return True

    # Queries

    def known(self, ledger_id: int) -> LedgerState:
        """Return the ledger's state. Raises `NoSuchLedger` or (in limbo) `UnknownState`."""
        state = self._states.get(ledger_id)
        if state is None:
            self.require_certain(ledger_id, "knows the ledger")
        if state is None or state.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} is not known to this bookie")
        return state

    def require_certain(self, ledger_id: int, what: str) -> None:
        """Raise `UnknownState` if this bookie must not deny anything about the ledger.

        Call it before every negative answer. `what` completes "cannot tell whether it …".
        """
        if self.limbo.covers(ledger_id):
            raise UnknownState(
                f"ledger {ledger_id}: this bookie has lost data, and cannot tell whether it {what}"
            )

    def sure(self, ledger_id: int, what: str) -> LedgerState:
        """Act as `known`, but refuse in limbo: lost data could make the answer too low."""
        state = self.known(ledger_id)
        self.require_certain(ledger_id, what)
        return state

    def last_add_confirmed(self, ledger_id: int, after: int | None = None) -> int:
        """Return the highest LAC seen, explicit or in an entry. Raises like `known`.

        In limbo, only a LAC above `after` is returned.
        """
        lac = self.known(ledger_id).last_add_confirmed
        if after is None or lac <= after:
            self.require_certain(ledger_id, "knew of a later LAC")
        return lac

    def last_entry(self, ledger_id: int) -> int:
        """Return −1 if there is none. Raises `NoSuchLedger`, `UnknownState`."""
        return self.sure(ledger_id, "has a later entry").last_entry

    def watch_lac(self, ledger_id: int, after: int) -> asyncio.Future[int]:
        """Ends once the LAC is above `after`, or when the ledger is fenced or deleted.

        The ledger may be unknown.
        """
        future = self._watches.park(ledger_id, after)
        state = self._states.get(ledger_id)
        if state is not None:
            self._watches.moved(ledger_id, state.last_add_confirmed)
        return future

    def close(self) -> None:
        self._watches.cancel_all()

    # Changes

    def _authorized(self, ledger_id: int, key: bytes) -> LedgerState:
        """Create the state if the ledger is new.

        Raises `Unauthorized`, `NoSuchLedger`, and `TooManyRequests` when a new ledger may not begin
        yet.
        """
        if len(key) != MASTER_KEY_BYTES:
            raise Unauthorized(f"a master key has {MASTER_KEY_BYTES} bytes, not {len(key)}")
        state = self._states.get(ledger_id)
        if state is None:
            if not self.ledger_admission.may_begin(ledger_id):
                raise TooManyRequests(f"ledger {ledger_id} is new here: looking for its record")
            return self._states.create(ledger_id, key)
        if state.deleted:
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")
        if state.key != key:
            # After a loss, another caller may have come first with a wrong key.
            self.require_certain(ledger_id, "had it under this key")
            raise Unauthorized(f"ledger {ledger_id}: this is not the ledger's master key")
        return state

    async def fence(self, ledger_id: int, key: bytes) -> None:
        """Refuse ordinary adds from now on; durable on return, also for an unknown ledger.

        Raises `Unauthorized`, `NoSuchLedger`, and `ReadOnly` or `BookieIOError` when the fence
        could not be made durable: it holds in memory, and the next call tries again. Readers that
        wait for a LAC are answered, because later entries may come from a recovery.
        """
        try:
            state = self._authorized(ledger_id, key)
        except Unauthorized:
            await self._vouch_for_key(ledger_id)
            raise
        except NoSuchLedger:  # make the deletion durable, or a crash could let the writer continue
            await self.delete(ledger_id)
            raise
        pending = self._fences.get(ledger_id)
        sure = ledger_id not in self._unsure_fences
        step = ledger_rules.fence(state, sure=sure, under_way=pending is not None)
        if step is FenceStep.DURABLE:
            self._watches.wake(ledger_id, state.last_add_confirmed)
            return
        if step is FenceStep.JOURNAL:
            self._unsure_fences.add(ledger_id)
            self._states.touch(ledger_id)
            pending = self._write(ledger_id, encode_meta(MetaOp.FENCE, ledger_id, key))
            self._fences[ledger_id] = pending
            pending.add_done_callback(partial(self._fenced, ledger_id))
        assert pending is not None
        await asyncio.shield(pending)
        self._watches.wake(ledger_id, state.last_add_confirmed)

    async def _vouch_for_key(self, ledger_id: int) -> None:
        """Make the key that the ledger has here durable.

        A caller that fences with another key takes the refusal as final: no entry was or will be
        stored under its key (ledger/recover/recovery_state.py). A crash must not make this bookie
        forget that.
        """
        if (state := self._states.get(ledger_id)) is not None:
            known = MetaOp.EXPLICIT_LAC, ledger_id, state.key, state.explicit_lac
            await self._write(ledger_id, encode_meta(*known))

    def _fenced(self, ledger_id: int, done: asyncio.Future[None]) -> None:
        del self._fences[ledger_id]
        if not done.cancelled() and done.exception() is None:
            self._unsure_fences.discard(ledger_id)

    async def set_explicit_lac(self, ledger_id: int, key: bytes, lac: int) -> None:
        """Store an explicit LAC, durable on return. Raises like `fence`."""
        state = self._authorized(ledger_id, key)
        if lac <= state.explicit_lac:
            return

        def take() -> None:
            if lac > state.explicit_lac:
                state.explicit_lac, state.lac_body = lac, None
            self._states.touch(ledger_id)
            self._watches.moved(ledger_id, state.last_add_confirmed)

        record = encode_meta(MetaOp.EXPLICIT_LAC, ledger_id, key, lac)
        await self._write(ledger_id, record, take)

    def keep_signed_lac(self, ledger_id: int, lac: int, body: bytes) -> None:
        """Keep `lac` as its writer signed it, for readers that check signatures.

        In memory: after a restart `signed_lac` signs again if no password is needed.
        """
        state = self._states.get(ledger_id)
        if state is not None and state.explicit_lac == lac:
            state.lac_body = body

    def signed_lac(self, ledger_id: int, last_entry: bytes | None) -> bytes | None:
        """Return the explicit LAC with its digest, if any. Raises like `sure`."""
        state = self.sure(ledger_id, "knew of a later LAC")
        lac = state.explicit_lac
        if lac == INVALID_ENTRY_ID:
            return None
        if state.lac_body is None and last_entry is not None:
            return ledger_rules.lac_alone(ledger_id, lac, last_entry)
        return state.lac_body

    async def delete(self, ledger_id: int, now_ms: int = 0) -> None:
        """Delete the ledger for ever, durable on return; do nothing if it is unknown.

        Raises `ReadOnly` or `BookieIOError` when it is only in memory; the next call journals it
        again.
        """
        state = self._states.get(ledger_id)
        if state is None or (state.deleted and ledger_id not in self._unsure_deletions):
            return
        pending = self._deletions.get(ledger_id)
        if pending is None:
            if not state.deleted:
                self._forget(ledger_id, state, now_ms)
            record = encode_meta(MetaOp.DELETE, ledger_id, state.key, state.deleted_ms)
            pending = self._deletions[ledger_id] = self._write(ledger_id, record)
            pending.add_done_callback(partial(self._deletion_written, ledger_id))
        await asyncio.shield(pending)

    def _deletion_written(self, ledger_id: int, done: asyncio.Future[None]) -> None:
        del self._deletions[ledger_id]
        if not done.cancelled() and done.exception() is None:
            self._unsure_deletions.pop(ledger_id, None)

    def unsure_deletions(self) -> list[int]:
        """Return deletions in memory that are perhaps not on disk: delete these ledgers again."""
        return list(self._unsure_deletions)

    def fate(self, ledger_id: int) -> Fate:
        state = self._states.get(ledger_id)
        if state is None:
            return Fate.UNKNOWN
        if not state.deleted:
            return Fate.LIVE
        return Fate.UNSURE if ledger_id in self._unsure_deletions else Fate.DELETED

    def _forget(self, ledger_id: int, state: LedgerState, now_ms: int) -> None:
        state.delete(now_ms)
        self._unsure_deletions[ledger_id] = None
        self._states.touch(ledger_id)
        self._watches.wake(ledger_id, state.last_add_confirmed)
        self._on_deleted(ledger_id)

    def _write(
        self, ledger_id: int, record: bytes, take: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        """Journal a record; once it is durable, call `take`, then end the future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if error is None and take is not None:
                take()
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                kind: type[BookieError] = ReadOnly if isinstance(error, DiskFull) else BookieIOError
                future.set_exception(kind(str(error)))

        self._journals.of(ledger_id).append([record], len(record), done)
        return future


def _note_stored(state: LedgerState, batch: AddBatch) -> bool:
    """Return whether the LAC went up."""
    last = batch.first_entry + batch.count - 1
    if last > state.last_entry:
        state.last_entry = last
        if last > state.reached:
            state.reached = last
    lac = _LAC.unpack_from(batch.frames, batch.offsets[-1] + _LAC_AT)[0]
    if lac > state.lac and (lac := min(lac, last - 1)) > state.lac:  # see `Entry.known_lac`
        state.lac = lac
        return True
    return False


class LedgerReplay:
    def __init__(self, states: LedgerStates, on_deleted: Callable[[int], None]) -> None:
        self._states = states
        self._on_deleted = on_deleted
        self.unsure_deletions: dict[int, None] = {}
        """Deletions read from a journal may be only in the page cache."""

    def replay(self, record: AddBatch | Meta) -> bool:
        """Repeats do no harm. Return whether a batch must be stored."""
        state = self._states.get(record.ledger_id)
        if state is None:
            state = self._states.create(record.ledger_id, record.key)
        if isinstance(record, AddBatch):
            if state.deleted:
                return False
            _note_stored(state, record)
            self._states.touch(record.ledger_id)
            return True
        self._states.touch(record.ledger_id)
        ledger_rules.repeat(state, record)
        if record.op is MetaOp.DELETE:
            self.unsure_deletions[record.ledger_id] = None
            self._on_deleted(record.ledger_id)
        return False


class LacWatches:
    """Futures that wait for LACs. The caller bounds their number."""

    def __init__(self) -> None:
        self._parked: dict[int, dict[asyncio.Future[int], int]] = {}

    def describe(self) -> dict[str, int]:
        return {"waiting": sum(map(len, self._parked.values()))}

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def lowest(self) -> dict[int, int]:
        return {ledger_id: min(parked.values()) for ledger_id, parked in self._parked.items()}

    def park(self, ledger_id: int, after: int) -> asyncio.Future[int]:
        """Ends once the LAC is above `after`, or at `wake`.

        Cancel it when it is no longer needed.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parked.setdefault(ledger_id, {})[future] = after
        future.add_done_callback(lambda done: self._leave(ledger_id, done))
        return future

    def moved(self, ledger_id: int, lac: int) -> None:
        """End the futures that wait for a LAC up to `lac`."""
        for future, after in self._parked.get(ledger_id, {}).items():
            if lac > after and not future.done():
                future.set_result(lac)

    def wake(self, ledger_id: int, lac: int) -> None:
        for future in self._parked.get(ledger_id, {}):
            if not future.done():
                future.set_result(lac)

    def cancel_all(self) -> None:
        for parked in list(self._parked.values()):
            for future in parked:
                future.cancel()

    def _leave(self, ledger_id: int, done: asyncio.Future[int]) -> None:
        parked = self._parked.get(ledger_id, {})
        parked.pop(done, None)
        if not parked:
            self._parked.pop(ledger_id, None)
