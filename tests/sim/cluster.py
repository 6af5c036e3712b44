"""The cluster of a seed: bookies on simulated disks, metadata, network, and referees.

It starts and kills production code, and tells the referee at once what each bookie reports as
durable.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from octavo.bookie.adds import AddBatch
from octavo.bookie.back_pressure import Pressure
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import DamageKind
from octavo.bookie.disk.files import DiskError
from octavo.bookie.journal.format import JournalDamaged
from octavo.bookie.journal.journal import journal_of
from octavo.bookie.journal.mark import Mark, MarkRefused, Position, read_mark
from octavo.bookie.ledgers.cookies import CookieRefused
from octavo.bookie.ledgers.high_water import MetadataOlder
from octavo.bookie.ledgers.state import LedgerStateDamaged
from octavo.bookie.node import BookieNode, BookieStartTimeout
from octavo.bookie.storage import Storage
from octavo.bookie.write.duplicate_adds import Done
from octavo.broker.operations.kinds import AnyAnswer, PartitionOperation
from octavo.broker.partition.partition import Partition
from octavo.ledger.rereplication.keeper import CopyKeeper
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.codes import (
    Code,
    NoSuchEntry,
    NoSuchLedger,
    OctavoError,
    TooManyRequests,
    UnknownState,
)
from tests.sim.clocks import Clocks
from tests.sim.copies import KEEPER, keeping
from tests.sim.disk import SimDisk
from tests.sim.events import Events
from tests.sim.garbage_audit import watch_garbage
from tests.sim.ledger_audit import LedgerAudit
from tests.sim.loop import SimLoop
from tests.sim.metadata import SimMetadata
from tests.sim.metadata_store import SimMetadataStore
from tests.sim.metadata_tree import Change
from tests.sim.network import SimNetwork
from tests.sim.options import SimOptions
from tests.sim.process import Process
from tests.sim.trace import Trace

SESSION_TIMEOUT_MS = 1_500
_CALL_TIMEOUT_MS = 600
_PORT = 3181
_REFUSALS = (CookieRefused, JournalDamaged, LedgerStateDamaged, MarkRefused)
"""A bookie that ends with one of these knows its loss, and stays away for good."""
_MISLED = ("disk: stale sector", "disk: misdirected write")
"""Faults after which a disk holds other bytes than were written."""
_PATIENCE = (MetadataUnavailable, BookieStartTimeout)
_FAILED_STARTS_MAX = 4
"""A bookie with a damaged disk that failed to start this often will never start."""


class SimBookie:
    """A machine with a bookie; it outlives the processes that run there."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.rng = cluster.loop.stream(f"bookie {name}")
        self.disk = SimDisk(cluster.options.disk_bytes, name=name)
        self.disk.on_note = cluster.trace.fault
        self.limits: Mapping[str, Any] = cluster.options.bookie
        self.process: Process | None = None
        self.node: BookieNode | None = None
        self.serving = False
        self.was_ready = False
        self.refused: BaseException | None = None
        self.busy = 0.0
        """The share of requests that are answered TooManyRequests."""
        self.held_down = False
        """Whether its restart is blocked at present."""
        self.accepts_loss = False
        """It is started with --accept-loss until it serves again."""
        self.accepts_older = False
        """It is started with --accept-older-metadata until it serves again."""
        self.started_s = 0.0
        """The start of the life in which it served last."""
        self.keeper: CopyKeeper | None = None
        self._mark: Mark | None = None
        self._failed_starts = 0
        self._first_file = self._first_mark = 0

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    def config(self) -> BookieConfig:
        return BookieConfig(
            host=self.name,
            port=_PORT,
            bookie_id=self.name,
            journal_directories=self.cluster.options.journal_directories,
            ledger_directories=self.cluster.options.ledger_directories,
            accept_data_loss=self.accepts_loss,
            accept_older_metadata=self.accepts_older,
            **self.limits,
            **(KEEPER if self.cluster.options.keeps_copies else {}),
        )

    # Life and death

    def start(self) -> None:
        """Start a process, unless one runs or none can."""
        if self.is_alive or self.refused is not None or self.held_down:
            return
        self.process = self.cluster.new_process(self.name)
        self.process.on_crash.append(self._died)
        self.process.spawn(self._live(self.process), self.name)

    def start_later(self, s: float) -> None:
        self.cluster.loop.world_later(s, self.start)

    def kill(self) -> None:
        if self.process is not None:
            self.disk.kill_chance = 1.0
            self.process.crash(power=False)
            self.disk.kill_chance = 0.0

    def power_loss(self) -> None:
        if self.is_alive and self.process is not None:
            self.process.crash()
        else:
            self.disk.crash(self.rng)

    def stop(self) -> None:
        if self.process is not None and self.process.alive and self.serving:
            self.process.spawn(self._stop(self.process), "stop")

    def _died(self, _: Process) -> None:
        if self.node is not None:
            self.count(self.node.storage)
        self.node = None
        self.serving = False
        self.cluster.audit.written.pop(self.name, None)

    def _pressure(self, level: Pressure) -> None:
        if level:
            self.cluster.trace.probe("bookie.pressure")

    def count(self, storage: Any) -> None:
        probe = self.cluster.trace.probe
        self._check_damage(storage)
        if self.keeper is not None:
            probe("copies.fetched", self.keeper.status.copied_entries)
            probe("copies.adopted", self.keeper.status.adopted)
            self.keeper = None
        if self.node is not None:
            done = self.node.collector.status.total
            probe("bookie.log_rewritten", done.copied_bytes)
            probe("bookie.collected", done.ledgers_deleted)
        mark = storage._checkpointer.mark
        files = _files(storage._journals.durable_positions)
        probe("bookie.journal_rolled", files - self._first_file)
        if mark is not None:
            probe("bookie.journal_trimmed", _files(mark.journals) - self._first_mark)
        probe("bookie.entry_log_closed", len(storage.logs.log_ids))
        for place, count in storage.read_stats.lookups.items():
            probe(f"bookie.found_in_{place}", count)

    def _check_damage(self, storage: Storage) -> None:
        """Check that reads and the scrubber never call undamaged data damaged."""
        found = storage.damages.current()
        rotten = [damage for damage in found if damage.kind is not DamageKind.UNREADABLE]
        hurt = self.name in self.cluster.audit.damaged or any(map(self.disk.counts.get, _MISLED))
        self.cluster.audit.check(
            not rotten or hurt, f"bookie {self.name} calls damaged what is good: {rotten}"
        )
        self.cluster.trace.probe("bookie.scrubbed", storage.scrubber.passes)
        self.cluster.trace.probe("bookie.found_damage", len(found))

    async def _live(self, process: Process) -> None:
        cluster = self.cluster
        started_s = cluster.loop.time()
        store = cluster.metadata_store(process)
        handle = self.disk.attach(process)
        try:
            await store.start()
            node = BookieNode(
                self.config(),
                store,
                disk=handle,
                rng=process.rng,
                clock=process.clock_ms,
                index_opener=handle.open_index,
                open_storage=self._open_storage,
            )
            self._watch_mode(node)
            await node.start()
        except OctavoError as error:
            self._exit(process, error)
            return
        self.node = node
        storage: Any = node.storage
        mark = storage._checkpointer.mark
        self._first_file = _files(storage._journals.durable_positions)
        self._first_mark = _files(mark.journals) if mark is not None else 0
        self._failed_starts = 0
        storage.pressure.on_change(self._pressure)
        self.serving = self.was_ready = True
        self.started_s = started_s
        cluster.events.add("bookie up", self.name)
        lost = cluster.audit.damaged.get(self.name, "")
        cluster.audit.check(
            lost != "swapped" and (lost != "wiped" or cluster.options.accepts_loss),
            f"P42 bookie {self.name} serves, its disk was {lost}",
        )
        cluster.audit.serves(self.name, storage.limbo.covers)
        if storage.limbo.record is not None:
            cluster.trace.probe("bookie.limbo")
        self.accepts_loss = self.accepts_older = False
        self._check_reopened(node.storage)
        try:
            async with keeping(self, node, store, process):
                await node.failed
        except Exception as error:
            cluster.trace.probe(f"bookie.failed.{type(error).__name__}")
            self.serving = False
            await node.stop()
            self._exit(process, error)

    def _exit(self, process: Process, error: BaseException) -> None:
        """Note that the process ended by itself; the supervisor starts it again."""
        self._failed_starts += 1
        helpless = self._failed_starts >= _FAILED_STARTS_MAX and not isinstance(error, _PATIENCE)
        if isinstance(error, MetadataOlder):
            self.cluster.audit.check(
                self.cluster.older, f"X26 {self.name} refuses metadata that is the newest: {error}"
            )
            self.refused = error
        elif isinstance(error, _REFUSALS) and self._is_accepted():
            self.cluster.trace.probe(f"bookie.loss_accepted.{type(error).__name__}")
        elif isinstance(error, _REFUSALS) or (helpless and self.name in self.cluster.audit.damaged):
            self.refused = error
            self.cluster.refused(self, error)
        elif not isinstance(error, OctavoError):
            self.cluster.audit.fail(f"bookie {self.name} failed with {error!r}")
        self.cluster.events.add("bookie ends", self.name, error)
        self.cluster.trace.probe(f"bookie.ends.{type(error).__name__}")
        self.kill()
        self.start_later(0.1 + self.rng.random() * 0.2)

    def _is_accepted(self) -> bool:
        """Whether the operator accepts the loss now, until the bookie serves."""
        audit = self.cluster.audit
        lost = audit.damaged.get(self.name, "swapped")
        if not self.cluster.options.accepts_loss or self.accepts_loss or lost == "swapped":
            return False
        self.accepts_loss = True
        audit.disk_lost(self.name)
        return True

    async def _stop(self, process: Process) -> None:
        node = self.node
        if node is None:
            return
        self.serving = False
        await node.stop()
        self.cluster.loop.look_for_unseen_errors(process)
        self.cluster.events.add("bookie stopped", self.name)
        self.kill()
        self.start_later(self.rng.random() * 0.3)

    # Reports

    async def _open_storage(self, config: BookieConfig, **how: Any) -> Storage:
        storage = await Storage.open(config, **how)
        self._watch(storage)
        return storage

    def _watch(self, storage: Storage) -> None:
        """Tell the referee what the storage reports; answer TooManyRequests when told to."""
        name, audit = self.name, self.cluster.audit
        journals = self.cluster.options.journal_directories
        add, fence, storage_reads = storage.add, storage.control.fence, storage.reads
        set_explicit_lac, delete = storage.control.set_explicit_lac, storage.delete_ledger
        force = storage.force

        def watched_add(
            runs: Sequence[AddBatch], done: Done, lane: Hashable = 0, *, deferred: bool = False
        ) -> None:
            reported = audit.deferred if deferred else audit.stored

            def watched(results: Sequence[tuple[AddBatch, Code]]) -> None:
                for run, code in results:
                    if code is Code.OK:
                        failed = self.disk.failed_sync
                        folder = journals[journal_of(run.ledger_id, len(journals))]
                        audit.check(  # an entry that another journal has synced, it has
                            not failed.startswith(f"{folder}/"),
                            f"P38 {name} stored an entry after the sync of {failed} had failed",
                        )
                        last = run.first_entry + run.count - 1
                        reported(name, run.ledger_id, run.first_entry, last, run.recovery)
                done(results)

            if self.busy and self.rng.random() < self.busy:
                self.cluster.trace.fault("busy.add")
                done([(run, Code.TOO_MANY_REQUESTS) for run in runs])
            else:
                add(runs, watched, lane, deferred=deferred)

        async def watched_fence(ledger_id: int, key: bytes) -> None:
            written = set(audit.written[name][ledger_id])
            await fence(ledger_id, key)
            audit.fence_durable(name, ledger_id)
            audit.forced(name, ledger_id, written)

        async def watched_force(ledger_id: int) -> None:
            written = set(audit.written[name][ledger_id])
            await force(ledger_id)
            audit.forced(name, ledger_id, written)
            self.cluster.trace.probe("bookie.forced", len(written))

        async def watched_read_many(
            ledger_id: int, first: int, count_max: int, bytes_max: int, *, urgent: bool = False
        ) -> list[bytes]:
            if self.busy and self.rng.random() < self.busy:
                self.cluster.trace.fault("busy.read")
                raise TooManyRequests("busy")
            held = audit.holds(name, ledger_id, first)
            try:
                return await storage_reads.read_many(
                    ledger_id, first, count_max, bytes_max, urgent=urgent
                )
            except (NoSuchEntry, NoSuchLedger) as error:
                if held and audit.holds(name, ledger_id, first):
                    audit.fail(f"P41 bookie {name} denies what it held: {error}")
                raise
            except UnknownState:
                self.cluster.trace.probe("bookie.unknown_in_limbo")
                raise

        def watched_read_now(
            ledger_id: int, first: int, count_max: int, bytes_max: int
        ) -> list[bytes] | None:
            if self.busy and self.rng.random() < self.busy:
                self.cluster.trace.fault("busy.read")
                raise TooManyRequests("busy")
            try:
                return storage_reads.read_now(ledger_id, first, count_max, bytes_max)
            except (NoSuchEntry, NoSuchLedger) as error:
                if audit.holds(name, ledger_id, first):
                    audit.fail(f"P41 bookie {name} denies what it held: {error}")
                raise

        async def watched_lac(ledger_id: int, key: bytes, lac: int) -> None:
            await set_explicit_lac(ledger_id, key, lac)
            audit.lac_durable(name, ledger_id, lac)

        async def watched_delete(ledger_id: int) -> None:
            known = storage._states.get(ledger_id) is not None
            audit.check(
                audit.is_deleted(ledger_id) or ledger_id not in audit.ledgers,
                f"P44 bookie {name} deletes ledger {ledger_id}, whose record is there",
            )
            await delete(ledger_id)
            if known:
                audit.forgotten(name, ledger_id)

        put = setattr
        # only clients' reads: reads for repeated adds are not watched
        storage.reads = copy.copy(storage_reads)
        put(storage.reads, "read_many", watched_read_many)
        put(storage.reads, "read_now", watched_read_now)
        put(storage, "add", watched_add)
        put(storage, "force", watched_force)
        put(storage.control, "fence", watched_fence)
        put(storage.control, "set_explicit_lac", watched_lac)
        put(storage, "delete_ledger", watched_delete)
        watch_garbage(self, storage)

    def _watch_mode(self, node: Any) -> None:
        apply_mode = node._apply_mode

        def watched(**why: object) -> None:
            before = node.server.read_only
            apply_mode(**why)
            if node.server.read_only is not before:
                self.cluster.trace.probe(f"bookie.{'writable' if before else 'read_only'}")

        node._apply_mode = watched

    def _check_reopened(self, storage: Storage) -> None:
        try:
            mark = read_mark(self.disk, self.cluster.options.ledger_directories)
        except DiskError:
            mark = None  # the referee itself met an armed fault
        if mark is not None and self.name not in self.cluster.audit.damaged:
            self.cluster.audit.check(
                self._mark is None or mark.covers(self._mark),
                f"P39 {self.name}: mark {self._mark} → {mark}",
            )
            self._mark = mark
        self.cluster.audit.reopened(self.name, storage)
        if self.cluster.options.keeps_copies:
            self.cluster.audit.found_again(self.name, storage)


def _files(positions: Sequence[Position]) -> int:
    return sum(position.file_id for position in positions)


class Cluster:
    """Everything of a seed but its clients and its faults."""

    def __init__(self, loop: SimLoop, options: SimOptions, events: Events) -> None:
        self.loop = loop
        self.trace: Trace = loop.trace
        self.options = options
        self.events = events
        self.audit = LedgerAudit(loop.time, events)
        self.network = SimNetwork(loop)
        self.metadata = SimMetadata(loop, self.trace)
        self.clocks = Clocks()
        self.metadata.observers.append(self._metadata_changed)
        self.older = False
        """The metadata was turned back to an older copy."""
        self.bookies = {f"b{n}": SimBookie(self, f"b{n}") for n in range(1, options.bookies + 1)}
        self.on_operation: list[Callable[[Partition, PartitionOperation, AnyAnswer], None]] = []
        """Called for each operation that an owner has done for a caller."""
        self.on_refused: list[Callable[[SimBookie, BaseException], None]] = []
        self._ledger_ids: dict[str, int | None] = {}

    def start(self) -> None:
        for bookie in self.bookies.values():
            bookie.start()

    @property
    def all_serve(self) -> bool:
        return all(b.serving or b.refused is not None for b in self.bookies.values())

    def new_process(self, name: str) -> Process:
        process = Process(self.loop, name)
        self.clocks.join(process)
        process.on_crash.append(lambda _: self.events.add("dies", name))
        return process

    def metadata_store(self, process: Process) -> SimMetadataStore:
        store = self.metadata.store(
            process, session_timeout_ms=SESSION_TIMEOUT_MS, call_timeout_ms=_CALL_TIMEOUT_MS
        )
        process.on_crash.append(lambda _: self.metadata.forget(store))
        return store

    def refused(self, bookie: SimBookie, error: BaseException) -> None:
        for told in self.on_refused:
            told(bookie, error)

    def _metadata_changed(self, change: Change) -> None:
        ledger_id = self._ledger_id(change.path)
        if ledger_id is not None:
            self.audit.record_changed(ledger_id, change.value, change.version, change.by)

    def _ledger_id(self, path: str) -> int | None:
        if path not in self._ledger_ids:
            digits = path.removeprefix("/ledgers/").replace("/", "").replace("L", "")
            is_record = path.startswith("/ledgers/") and path.rpartition("/")[2].startswith("L")
            self._ledger_ids[path] = int(digits) if is_record and digits.isdigit() else None
        return self._ledger_ids[path]
