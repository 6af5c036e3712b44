"""The ledger client: create, open, recover, delete and list ledgers.

One `LedgerClient` per process, on one event loop: it owns the connections to bookies and the clock
tick of all writers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from octavo.ledger.actions import ChooseReplacements
from octavo.ledger.bookies.bookies import Bookies, settle
from octavo.ledger.bookies.connection import BookieConnection
from octavo.ledger.bookies.placement import choose_ensemble, choose_replacements, no_choice
from octavo.ledger.context import OpenWriter, Ticking
from octavo.ledger.encryption import Sealing, opening_of
from octavo.ledger.errors import (
    BookieUnavailable,
    ClientClosed,
    LedgerClosed,
    LedgerError,
    LedgerNotFound,
    NotEnoughBookies,
    ReadFailed,
    TooFewBookies,
)
from octavo.ledger.options import LedgerOptions
from octavo.ledger.quorum import risk_of
from octavo.ledger.read.doubts import Doubts
from octavo.ledger.read.reader import LedgerReader
from octavo.ledger.records import check_password, read_record
from octavo.ledger.recover.events import RecoveryEvent
from octavo.ledger.recover.recovery import Recovery
from octavo.ledger.write.taken_ids import TakenIds
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.gather_all import gather_each
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore, RecordNotFound
from octavo.protocol.codes import BadRequest, OctavoError
from octavo.protocol.entry import DigestType
from octavo.protocol.extension import Op
from octavo.security.keys.data_keys import DataKeys
from octavo.security.keys.errors import KeyMissing
from octavo.security.keys.wrapped import ENCRYPTION_KEY
from octavo.tls.contexts import Certificates

if TYPE_CHECKING:
    from octavo.security.bookie_tokens import Prove  # slow to import

log = structlog.get_logger()

T = TypeVar("T")
_TICK_S = 0.05
_TICKED_AT_ONCE = 100
"""In one turn of the loop: a broker of 2,000 partitions writes 4,000 ledgers."""
_RECORDS_AT_ONCE = 64
_ASK_FOR_ID_S = 2.0


class LedgerClient:
    """Ledgers on the bookies that are registered in one metadata store."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        rng: random.Random,
        options: LedgerOptions | None = None,
        clock: Callable[[], int] | None = None,
        observe_recovery: Callable[[int, RecoveryEvent], None] | None = None,
        tls: Certificates | None = None,
        prove: Prove | None = None,
        keys: DataKeys | None = None,
    ) -> None:
        """Make a client; `clock` returns milliseconds since 1970, for creation times.

        `observe_recovery` gets (ledger id, step) of recoveries without their own observer. Without
        `tls` connections are in the clear. `prove` makes tokens for bookies. `keys`: for payloads
        of encrypted ledgers.
        """
        self.store = store
        self.options = options or LedgerOptions()
        self.rng = rng
        self.cluster_password = b""
        """The default password of new ledgers; known after `start`."""
        self.records = LedgerStore(store, rng=rng)
        self.bookies = Bookies(BookieRegistry(store), self.options, rng, tls, prove)
        self.keys = keys
        self._clock = clock or (lambda: 0)
        self._observe_recovery = observe_recovery
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticking: dict[Ticking, None] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._writers: dict[OpenWriter, tuple[str, ...]] = {}
        """The open writers, each with its first ensemble."""
        self._open_ledgers: Counter[str] = Counter()
        """How many writers each bookie serves: placement prefers bookies with few."""
        self._recoveries: dict[tuple[int, bytes | None], asyncio.Task[LedgerMetadata]] = {}
        self._told_of_risk = False
        """That an ack quorum of 1 is risky."""
        self.doubts = Doubts(self)
        self.taken = TakenIds()
        """Ids of new ledgers that bookies knew under another key."""

    def describe(self) -> dict[str, int]:
        return {"recoveries": len(self._recoveries)}

    async def start(self) -> None:
        """Connect to bookies; the store must be started. Raises `MetadataUnavailable`."""
        await self.records.initialize()
        self.cluster_password = (await cluster_secret(self.store, rng=self.rng)).ledger_password
        await self.bookies.start()

    async def close(self) -> None:
        """Close all connections; open ledgers stay open until a client recovers them."""
        reason = ClientClosed("this ledger client was closed")
        for writer in tuple(self._writers):
            writer.abandon(reason)
        await self.bookies.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ ledgers

    async def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes | None = None,
        custom: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
        encrypted_for: str | None = None,
    ) -> LedgerWriter:
        """Create a ledger and return its writer. The default password is the cluster's.

        With `deferred_sync` an ack means written, and the LAC advances only with
        `LedgerWriter.force`: until then a power failure may lose entries. `encrypted_for` names a
        namespace, whose key wraps a new data key.

        Raises `NotEnoughBookies`; `TooFewBookies` when even all would be too few;
        `MetadataUnavailable`; `KeyMissing` and `KeySourceUnavailable`.
        """
        if not ensemble_size >= write_quorum >= ack_quorum >= 1:
            raise LedgerError(
                f"ensemble size {ensemble_size}, write quorum {write_quorum}, ack quorum "
                f"{ack_quorum}: needs ensemble size >= write quorum >= ack quorum >= 1"
            )
        if (risk := risk_of(write_quorum, ack_quorum)) and not self._told_of_risk:
            self._told_of_risk = True
            log.warning("ack_quorum_of_one", reason=risk)
        key = (
            None
            if encrypted_for is None
            else await self._keys_for(encrypted_for).new(encrypted_for)
        )
        labels = dict(custom or {})
        if key is not None:
            labels[ENCRYPTION_KEY] = key.wrapped.encode()
        if password is None and not self.cluster_password:
            raise LedgerError(
                "the cluster's password is not known: start this ledger client, or give a password "
                "for this ledger"
            )
        bookies = await self._choose(ensemble_size, write_quorum)
        wanted = LedgerMetadata(
            ledger_id=-1,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            fragments=(Fragment(0, bookies),),
            digest_type=digest_type,
            password=self.cluster_password if password is None else password,
            created_ms=self._clock(),
            custom=labels,
        )
        await self._leave_taken()
        is_free = functools.partial(self._is_free, bookies)
        metadata, version = await self.records.create(wanted, is_free)
        sealing = None
        if key is not None:
            assert self.keys is not None
            sealing = Sealing(metadata.ledger_id, key, self.keys.writer_prefix())
        writer = LedgerWriter(self, metadata, version, deferred=deferred_sync, sealing=sealing)
        self._writers[writer] = bookies
        self._open_ledgers.update(bookies)
        log.info("ledger_created", ledger=metadata.ledger_id, ensemble=bookies)
        return writer

    def _keys_for(self, namespace: str) -> DataKeys:
        if self.keys is None:
            raise KeyMissing(
                f"the topics of namespace {namespace} are encrypted, and this process has no keys: "
                "give it the setting keys.file or keys.service (OCTAVO_KEYS_FILE, "
                "OCTAVO_KEYS_SERVICE)"
            )
        return self.keys

    async def _is_free(self, bookies: Sequence[str], ledger_id: int) -> bool:
        """Whether no chosen bookie knows this id; asks them only for a while after a taken id."""
        if not self.taken.is_wary(asyncio.get_running_loop().time()):
            return True
        asked = [self.spawn(self._knows(bookie, ledger_id)) for bookie in bookies]
        done, silent = await asyncio.wait(asked, timeout=_ASK_FOR_ID_S)
        for question in silent:
            question.cancel()
        if any(question.result() for question in done):
            self.id_taken(ledger_id, "bookies have it already")
            await self._leave_taken()
            return False
        return True

    async def _leave_taken(self) -> None:
        if (ledger_id := self.taken.take_leave()) is not None:
            stretches = self.rng.randint(1, self.taken.stretches_max)
            await self.records.leave(ledger_id, stretches)

    async def _knows(self, bookie_id: str, ledger_id: int) -> bool:
        """Whether the bookie has the ledger; False if it cannot tell."""
        if not self.bookies.get(bookie_id).is_ours:
            return False
        try:
            await self.request(bookie_id, Op.READ_LAC, {"ledger": ledger_id})
        except OctavoError:
            return False
        return True

    def id_taken(self, ledger_id: int, reason: str) -> None:
        """Note that a bookie already knows this id under another ledger's key."""
        log.warning("ledger_id_taken", ledger=ledger_id, reason=reason)
        self.taken.met(ledger_id, asyncio.get_running_loop().time())

    async def _choose(self, ensemble_size: int, write_quorum: int) -> tuple[str, ...]:
        for attempt in range(2):
            try:
                return choose_ensemble(
                    self.bookies.available,
                    ensemble_size,
                    write_quorum,
                    rng=self.rng,
                    suspects=self.bookies.suspects(),
                    open_ledgers=self._open_ledgers,
                    weight_max=self.options.free_space_weight_max,
                )
            except NotEnoughBookies as error:
                if attempt:
                    known = await self.bookies.all_known(ensemble_size)
                    if len(known) < ensemble_size:
                        raise TooFewBookies(ensemble_size, known, error.up) from None
                    raise
                await self.bookies.reload()
        raise AssertionError("the second attempt returns or raises")

    async def open(
        self,
        ledger_id: int,
        *,
        password: bytes | None = None,
        recover: bool = False,
        as_stored: bool = False,
    ) -> LedgerReader:
        """Open for reading. With `recover`, fence the writer and close the ledger first.

        Otherwise an open ledger is followed. Without a `password`, access to the record is proof
        enough. `as_stored`: encrypted entries stay encrypted. Raises `LedgerNotFound`,
        `Unauthorized`, `RecoveryFailed`.
        """
        if recover:
            await self.recover(ledger_id, password=password)
        changed = asyncio.Event()
        watch = self.records.watch(ledger_id, changed.set)
        try:
            metadata, version = await read_record(
                self.records, ledger_id, self.options.metadata_timeout_s
            )
            check_password(metadata, password)
            opening = None if as_stored else opening_of(metadata, self.keys)
            reader = LedgerReader(self, metadata, version, opening)
        finally:
            watch.cancel()
        if metadata.state is not LedgerState.CLOSED:
            if changed.is_set():
                reader.look_again()
            with contextlib.suppress(ReadFailed):
                await reader.refresh()
        return reader

    async def recover(
        self,
        ledger_id: int,
        *,
        password: bytes | None = None,
        observe: Callable[[RecoveryEvent], None] | None = None,
    ) -> LedgerMetadata:
        """Fence and close the ledger; `password` as in `open`.

        Raises `RecoveryFailed` (the end could not be proved: try again), `LedgerNotFound`,
        `Unauthorized`. Concurrent calls with the same password share one recovery.
        """
        key = ledger_id, password
        task = self._recoveries.get(key)
        if task is None:
            if observe is None and self._observe_recovery is not None:
                observe = functools.partial(self._observe_recovery, ledger_id)
            task = self.spawn(Recovery(self, ledger_id, password, observe).run())
            self._recoveries[key] = task
            task.add_done_callback(lambda _: self._recoveries.pop(key, None))
        return await asyncio.shield(task)

    async def delete(self, ledger_id: int) -> None:
        """Remove the record; bookies free the space later. Raises `LedgerNotFound`."""
        try:
            await self.records.delete(ledger_id)
        except RecordNotFound as error:
            raise LedgerNotFound(f"no ledger {ledger_id}: never made, or deleted") from error

    async def discard(self, writer: LedgerWriter) -> None:
        """Delete a new ledger that no other record names, and stop its writer.

        Raises nothing: a ledger that cannot be deleted costs only space.
        """
        ledger_id = writer.ledger_id
        writer.abandon(LedgerClosed(f"ledger {ledger_id} was discarded by its writer"))
        try:
            await self.delete(ledger_id)
        except OctavoError as error:
            log.warning("ledger_not_deleted", ledger_id=ledger_id, reason=str(error))

    async def list(self) -> list[int]:
        return await self.records.list()

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Read the ledger's record. Raises `LedgerNotFound`."""
        timeout_s = self.options.metadata_timeout_s
        return (await read_record(self.records, ledger_id, timeout_s))[0]

    async def standing(self, ledger_ids: Iterable[int]) -> dict[int, LedgerMetadata]:
        """Read the records of those ledgers that exist, in order."""

        async def read(ledger_id: int) -> LedgerMetadata | None:
            with contextlib.suppress(LedgerNotFound):
                return await self.metadata(ledger_id)
            return None

        found = await gather_each(ledger_ids, read, _RECORDS_AT_ONCE)
        return {one.ledger_id: one for one in found if one is not None}

    # ------------------------------------------------------------------ for this package

    def replacements(self, wish: ChooseReplacements, metadata: LedgerMetadata) -> dict[int, str]:
        return choose_replacements(
            self.bookies.available,
            wish.ensemble,
            wish.positions,
            metadata.write_quorum,
            rng=self.rng,
            suspects=self.bookies.suspects(),
            open_ledgers=self._open_ledgers,
            weight_max=self.options.free_space_weight_max,
        )

    def why_no_choice(self, failed: Mapping[str, str]) -> str:
        suspects = self.bookies.suspects()
        return no_choice(self.bookies.available, suspects=suspects, failed=failed)

    def has_unsure_bookie(self, metadata: LedgerMetadata) -> bool:
        """Whether a bookie of the record is in limbo: it may have lost some of the ledger.

        It stays in limbo until the ledger is closed and copied back.
        """
        return any(
            self.bookies.is_unsure(metadata.ledger_id, fragment.bookies)
            for fragment in metadata.fragments
        )

    def with_connection(
        self,
        bookie_id: str,
        use: Callable[[BookieConnection], None],
        failed: Callable[[BookieUnavailable], None],
    ) -> None:
        bookie = self.bookies.get(bookie_id)
        if bookie.connection is not None:
            use(bookie.connection)
            return

        async def connect() -> None:
            try:
                connection = await bookie.connected()
            except BookieUnavailable as error:
                failed(error)
            else:
                use(connection)

        self.spawn(connect())

    async def request(
        self, bookie_id: str, op: Op, body: dict[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Send one extension request. Raises `BookieUnavailable` and errors of the bookie.

        `BadRequest` for an Apache bookie, unasked: it would close the connection.
        """
        bookie = self.bookies.get(bookie_id)
        if bookie.is_foreign:
            raise BadRequest(
                f"bookie {bookie_id} is an Apache bookie, and {op.name} is an operation of Octavo "
                "bookies only: it cannot be asked"
            )
        connection = await bookie.connected()
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        connection.request(op, body, settle(answer), timeout_s=timeout_s)
        return await answer

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, OctavoError):
                return
            log.error("ledger_task_failed", reason=repr(error))

    def forget(self, writer: OpenWriter) -> None:
        self._open_ledgers.subtract(self._writers.pop(writer, ()))

    def stop_ticking(self, ticking: Ticking) -> None:
        self._ticking.pop(ticking, None)

    def keep_ticking(self, ticking: Ticking) -> None:
        """Call `ticking.tick` every 50 ms until it returns False."""
        self._ticking[ticking] = None
        if self._ticker is None:
            self._ticker = self.spawn(self._tick())

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._ticking:
                await asyncio.sleep(_TICK_S)
                now = loop.time()
                for number, ticking in enumerate(tuple(self._ticking)):
                    if number and number % _TICKED_AT_ONCE == 0:
                        await asyncio.sleep(0)  # there may be thousands
                    if ticking not in self._ticking:
                        continue
                    try:
                        goes_on = ticking.tick(now)
                    except Exception as error:  # a bug in one writer must not stop the others
                        log.error("ledger_task_failed", reason=repr(error), exc_info=error)
                        goes_on = False
                        ticking.fail(LedgerError(f"its writer failed: {error!r}"))
                    if not goes_on:
                        self._ticking.pop(ticking, None)
        finally:
            self._ticker = None
