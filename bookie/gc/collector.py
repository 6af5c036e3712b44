"""Garbage collection: remove from this bookie's disks what was deleted in metadata.

A ledger whose record is proven gone twice, `gc_quarantine_ms` apart, is deleted for ever. Mostly
dead logs are read to their end, their live entries copied, and the logs removed. A deletion is
forgotten after `gc_deleted_keep_ms`, once no log has a record of the ledger.

A restart forgets the first proof. A damaged log is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import structlog

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import DiskFull
from octavo.bookie.gc.compaction import Cleared, Compactor
from octavo.bookie.gc.deletion_proof import DeletionProof, Proven
from octavo.bookie.gc.rules import Action, Decision, Quarantine, Rules, plan
from octavo.bookie.gc.status import CollectorStatus
from octavo.protocol.codes import BookieError, OctavoError

_log = structlog.get_logger()


class _Due(NamedTuple):
    minor: bool
    major: bool


class Collected(Protocol):
    compactor: Compactor

    def ledgers(self) -> list[int]: ...

    async def delete_ledger(self, ledger_id: int) -> None:
        """Reads then raise `NoSuchLedger`, and adds are refused."""

    async def checkpoint(self) -> None: ...


class Collector:
    def __init__(
        self,
        config: BookieConfig,
        storage: Collected,
        proofs: DeletionProof,
        *,
        clock: Callable[[], int],
        short_of_space: Callable[[], bool] = lambda: False,
        free_bytes: Callable[[], int] = lambda: 2**62,
    ) -> None:
        """Collect garbage; `free_bytes`: of the folder with most room; `clock`: wall-clock ms."""
        self._config = config
        self._storage = storage
        self._proofs = proofs
        self._clock = clock
        self._short_of_space = short_of_space
        self._free_bytes = free_bytes
        self._quarantine = Quarantine(config.gc_quarantine_ms)
        self._wanted = asyncio.Event()
        self._forced = _Due(minor=False, major=False)
        self._stopping = False
        self._running = asyncio.Lock()
        self._proving: asyncio.Future[Proven] | None = None
        self._minor_s = self._major_s = asyncio.get_running_loop().time()
        self.status = CollectorStatus()

    async def stop(self) -> None:
        self._stopping = True
        self._storage.compactor.stop()
        self._wanted.set()
        if self._proving is not None:
            self._proving.cancel()
        async with self._running:
            pass

    def start_now(self, *, minor: bool = False, major: bool = False) -> None:
        """Wait for the running round; `minor`, `major`: force compactions."""
        self._forced = _Due(self._forced.minor or minor, self._forced.major or major)
        self._wanted.set()

    async def run(self) -> None:
        interval_s = self._config.gc_interval_ms / 1000
        while not self._stopping:
            try:
                async with asyncio.timeout(interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            if not self._stopping:
                async with self._running:
                    await self.round()

    async def round(self) -> None:
        """Run one round. Raises only errors after which the bookie must not write."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        due = self._take_due(started_s)
        self.status.begin(self._clock())
        try:
            await self._delete_ledgers(int(started_s * 1000))
            if not self._stopping:
                await self._collect_logs(due, started_s)
        finally:
            self.status.end(loop.time() - started_s)
        done = self.status.last
        _log.info(
            "gc_round",
            duration_ms=int(1000 * done.seconds),
            deleted=done.ledgers_deleted,
            quarantined=len(self._quarantine),
            logs=done.logs,
            removed=done.logs_removed,
            reclaimed_bytes=done.reclaimed_bytes,
            copied_bytes=done.copied_bytes,
        )

    def _take_due(self, now_s: float) -> _Due:
        config, forced = self._config, self._forced
        self._forced = _Due(minor=False, major=False)
        short = self._short_of_space()
        major = forced.major or short or now_s - self._major_s >= config.gc_major_interval_ms / 1000
        minor = forced.minor or major or now_s - self._minor_s >= config.gc_minor_interval_ms / 1000
        if major:
            self._major_s = now_s
        if minor:
            self._minor_s = now_s
        return _Due(minor, major)

    async def _delete_ledgers(self, now_ms: int) -> None:
        storage, done = self._storage, self.status.last
        held = self._quarantine.in_turn(storage.ledgers(), now_ms)
        self._proving = asyncio.ensure_future(self._proofs.prove(held))
        try:
            proven = await self._proving
        except OctavoError as error:
            done.metadata_error = str(error)
            _log.warning("gc_without_metadata", error=error.name, reason=str(error))
            return
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            return
        finally:
            self._proving = None
        verdict = self._quarantine.round(now_ms, proven.gone, proven.present)
        for ledger_id in verdict.released:
            _log.warning("ledger_reappeared", ledger=ledger_id)
        wanted = list(dict.fromkeys([*storage.compactor.unsure_deletions(), *verdict.confirmed]))
        for ledger_id in wanted:
            if self._stopping:
                return
            try:
                await storage.delete_ledger(ledger_id)
            except BookieError as error:
                # The next round writes the deletion to the journal again.
                _log.warning("ledger_not_deleted_here", ledger=ledger_id, reason=str(error))
                break
            self._quarantine.forget(ledger_id)
            done.ledgers_deleted += 1
            _log.info("ledger_deleted", ledger=ledger_id)
        if wanted:
            try:
                await storage.checkpoint()
            except DiskFull as error:
                _log.warning("gc_without_checkpoint", reason=str(error))

    async def _collect_logs(self, due: _Due, now_s: float) -> None:
        compactor, config = self._storage.compactor, self._config
        done = self.status.last
        left_ms = self._quarantine.left_ms(int(now_s * 1000))
        self.status.quarantined = len(left_ms)
        counted = await compactor.log_metadata(left_ms)
        if self._stopping:
            return
        rules = Rules(
            config.gc_minor_ratio,
            config.gc_major_ratio,
            due.minor,
            due.major,
            self._free_bytes() - config.gc_disk_free_bytes_min,
        )
        decisions = plan(counted.logs, rules)
        self.status.planned(counted.logs, decisions)
        done.logs = len(decisions)
        for decision in decisions:
            if self._stopping:
                return
            if decision.action is not Action.KEEP:
                await self._clear(decision)
        await self._renew_current(due, rules)
        if counted.complete:
            before_ms = self._clock() - config.gc_deleted_keep_ms
            done.markers_dropped = await compactor.drop_markers(before_ms, counted.deleted)

    async def _clear(self, decision: Decision) -> None:
        compactor, done = self._storage.compactor, self.status.last
        copy = decision.action is Action.REWRITE
        cleared: Cleared = await compactor.clear(decision.log_id, copy=copy)
        size = self.status.cleared(cleared)
        done.read_bytes += cleared.read_bytes
        done.copied_bytes += cleared.copied_bytes
        if cleared.removed:
            done.logs_removed += 1
            done.reclaimed_bytes += size
            _log.info(
                "log_removed",
                log=cleared.log_id,
                bytes=size,
                copied_bytes=cleared.copied_bytes,
                reason=decision.reason,
            )
        else:
            _log.warning("log_not_removed", log=cleared.log_id, reason=cleared.reason)

    async def _renew_current(self, due: _Due, rules: Rules) -> None:
        """Begin a new log if little of the current log is live: the next round may empty it."""
        ratio = self._config.gc_major_ratio if due.major else self._config.gc_minor_ratio
        current = self.status.newest()
        if not due.minor or current is None or current.why_not or rules.room_bytes <= 0:
            return
        if current.bytes and current.ratio <= ratio:
            try:
                await self._storage.compactor.renew_current()
            except DiskFull as error:
                _log.warning("gc_without_checkpoint", reason=str(error))

    def status_json(self, limit: int) -> dict[str, Any]:
        found = self.status.as_json(limit)
        progress = self._storage.compactor.progress
        names = ("log_id", "read_bytes", "of_bytes")
        found["progress"] = None if progress is None else dict(zip(names, progress, strict=True))
        return found
