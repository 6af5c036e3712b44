"""One broker: the topics of the cluster, the partitions served here, the owners of the others.

Promises: a partition is recovered before it is served; serving stops when the session ends or the
ledger is fenced. Correctness rests on fencing, not on ownership.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from octavo.broker.bulkload.driver import BulkLoads
from octavo.broker.clock.deletion_clock import ClockLimits, DeletionTime
from octavo.broker.clock.timekeeper import Timekeeper
from octavo.broker.cluster.background_tasks import BackgroundTasks
from octavo.broker.cluster.balance import Balance
from octavo.broker.cluster.broker_status import BrokerStatus
from octavo.broker.cluster.dead_letters import DeadLetterRouter
from octavo.broker.cluster.deletion import Deletions
from octavo.broker.cluster.expiry import ExpiredStreams, InactiveTopics
from octavo.broker.cluster.forks import Forks
from octavo.broker.cluster.orphan_ledgers import OrphanLedgers
from octavo.broker.cluster.ownership import OwnershipManager
from octavo.broker.cluster.registry import BrokerRegistry, decode_broker, encode_broker
from octavo.broker.cluster.schema_registry import SchemaRegistry
from octavo.broker.cluster.topics import Topics
from octavo.broker.config import BrokerConfig
from octavo.broker.errors import NoOtherBroker, TopicChanged, TopicNotFound
from octavo.broker.log.cache import TailCache
from octavo.broker.log.ledger_references import SharedLedgers
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.log.reader import ReadAheadBudget
from octavo.broker.metrics import Duties
from octavo.broker.partition.context import PartitionContext
from octavo.broker.partition.handover_messages import (
    AnnounceToSuccessor,
    AskSuccessor,
    Handover,
    HandoverNotice,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.schemas.engine import Engine
from octavo.broker.types import (
    DEFAULT_NAMESPACE,
    BrokerInfo,
    PartitionName,
    TopicName,
)
from octavo.ledger.client import LedgerClient
from octavo.metadata.bulk_loads import BulkLoadStore
from octavo.metadata.clock import ClockStore
from octavo.metadata.election import Ownership
from octavo.metadata.schemas import SchemaStore
from octavo.metadata.shares import ShareStore
from octavo.metadata.store import MetadataStore, MetadataUnavailable, SessionExpired
from octavo.metadata.topics import TopicStore
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_RUN_REST_S = 2.0
"""The pause between runs: each leaves an old ledger for a while, and a line in the record."""
_KEPT_UP_AT_ONCE = 8
_QUIET_ROUNDS = 6
"""An unused partition is maintained in one of this many rounds."""
TellPeer = Callable[[BrokerInfo, TopicName, str], Awaitable[list[int]]]


class Broker:
    """A broker without its ports; the caller starts and closes `store` and `ledgers`.

    `schema_engine` works with the schema libraries; None: on the event loop.
    """

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        config: BrokerConfig,
        *,
        rng: random.Random,
        clock: Callable[[], int],
        schema_engine: Engine | None = None,
    ) -> None:
        self.config = config
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds: list[asyncio.Task[None]] = []
        self._leaving = False
        records = TopicStore(store)
        ownership = Ownership(store)
        self._shared = SharedLedgers(ShareStore(store), records, ledgers, config.ledger_shares_max)
        self._deletions = Deletions(
            records, ledgers, ownership, config, self._tell_all, self._spawn, rng, self._shared
        )
        self.topics = Topics(
            records, self._deletions, clock, self._spawn,
            lambda name: self.ownership.topic_deleted(name), config.subscriptions_max,
        )  # fmt: skip
        self.forks = Forks(records, self.topics, self._deletions, self._shared, clock, self._spawn)
        self._leftovers = OrphanLedgers(records, ledgers, config, self._shared)
        self.tell_peer: TellPeer | None = None
        self.announce_to_peer: AnnounceToSuccessor | None = None
        self.ask_peer: AskSuccessor | None = None
        self.registry = BrokerRegistry(
            store, ownership, config.balance_after_ms,
            lambda: self.ownership.reconcile(), self._fail, self._spawn,
        )  # fmt: skip
        self._timekeeper = Timekeeper(
            ClockStore(store),
            clock,
            ClockLimits(config.clock_tolerance_ms, config.clock_quarantine_ms),
            config.clock_beat_ms,
        )
        self.open_batches = OpenBatches(config.opened_bytes_max)
        self.letters = DeadLetterRouter(self.topics, lambda: self.ownership, clock)
        self.schemas = self._new_schemas(store, clock, schema_engine)
        self._context = self._new_context(store, records, ledgers, clock)
        loads = self._context.bulk_loads
        self.bulk_loads = BulkLoads(loads, records, ledgers, clock, self.deletion_time)
        self.ownership = OwnershipManager(
            self._context, config, self.topics, records, ownership, self.registry, self._spawn
        )
        self.balance = Balance(
            config, self.registry, self.ownership, self._announce_to_successor, self._ask_successor
        )
        self.inactive = InactiveTopics(
            self.topics, records, self.ownership, self.deletion_time, config.non_durable_expiry_ms
        )
        self.streams = ExpiredStreams(self.topics, self._shared, self._spawn)
        self.background_tasks = BackgroundTasks(config.trim_interval_ms, self._spawn)

    def _new_schemas(
        self, store: MetadataStore, clock: Callable[[], int], engine: Engine | None
    ) -> SchemaRegistry:
        turns = self.open_batches.turns
        return SchemaRegistry(SchemaStore(store), clock, self._spawn, engine, turns)

    def _new_context(
        self,
        store: MetadataStore,
        records: TopicStore,
        ledgers: LedgerClient,
        clock: Callable[[], int],
    ) -> PartitionContext:
        config = self.config
        return PartitionContext(
            config=config,
            ledgers=ledgers,
            topics=records,
            tail_cache=TailCache(config.tail_cache_bytes_max),
            read_ahead=ReadAheadBudget(config.read_ahead_bytes_max),
            open_batches=self.open_batches,
            clock=clock,
            rng=self._rng,
            deletion_time=self.deletion_time,
            subscription_info=lambda name, sub: self.topics.subscription(name.topic_name, sub),
            spawn=self._spawn,
            broker_id=lambda: self.registry.own.broker_id,
            leases_are_read=lambda: self.registry.all_read_leases,
            bulk_loads=BulkLoadStore(store),
            letters=self.letters,
            shared=self._shared,
            schema_checker=self.schemas.checker,
        )

    @property
    def broker_id(self) -> str:
        return self.registry.own.broker_id

    @property
    def url(self) -> str:
        return self.registry.own.url

    async def start(self, url: str) -> None:
        """Start; `url` must be bound already."""
        config = self.config
        broker_id = config.broker_id or url.split("://", 1)[-1].rstrip("/")
        own = BrokerInfo(broker_id, url)
        run = f"{self._rng.getrandbits(64):016x}"
        value = encode_broker(own, run)
        self.topics.start(run)
        self._deletions.start(value)
        await self.topics.create_namespace(DEFAULT_NAMESPACE)
        self.ownership.start(value)
        await self.registry.start(own, value)
        self._tell_time()
        self._rounds = [
            self._spawn(self._again_and_again(config.trim_interval_ms, self._begin_upkeep)),
            self._spawn(self._again_and_again(config.balance_interval_ms, self._rebalance)),
            self._spawn(self._again_and_again(config.sweep_interval_ms, self._sweep)),
            self._spawn(self._again_and_again(config.clock_beat_ms, self._tell_time)),
        ]

    async def give_away(self) -> None:
        """Hand partitions over one by one, and serve them until then; then call `close`.

        Takes at most `stop_handover_ms`, and never fails.
        """
        if self._leaving:
            return
        self._leaving = True
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(*self._rounds, return_exceptions=True)
        self.ownership.take_no_more()
        if not self.ownership.held() or not self.registry.is_connected or self.failed.done():
            return
        reason = ""
        try:
            self.balance.check_others()
            async with asyncio.timeout(self.config.stop_handover_ms / 1000):
                await self._stand(draining=True)
                await self.balance.give_all()
        except NoOtherBroker:
            return  # there are no other brokers, or they are stopping too
        except TimeoutError:
            reason = f"stop_handover_ms ({self.config.stop_handover_ms}) is over"
        except Exception as error:  # a bug must not stop this broker from releasing its partitions
            reason = str(error) or repr(error)
            if not isinstance(error, OctavoError):
                _log.error("broker_task_failed", task="give_away", reason=reason, exc_info=error)
        if left := self.ownership.held():
            _log.info("not_all_handed_on", partitions=left, reason=reason or "no broker took them")

    async def close(self) -> None:
        await self.give_away()
        await self.background_tasks.close()
        try:
            await self.registry.leave()
        except OctavoError as error:
            _log.warning("broker_not_unregistered", broker=self.broker_id, reason=str(error))
        await self.ownership.hand_over()
        await self.registry.close()
        self.topics.close()
        self.bulk_loads.close()
        self.schemas.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self) -> None:
        """Hand all partitions over, and take no new partitions.

        Returns at once; draining lasts until `undrain` or a restart. Raises `NoOtherBroker`,
        `MetadataUnavailable`.
        """
        self.balance.check_others()
        await self._stand(draining=True)
        _log.info("broker_drained", broker=self.broker_id)
        self._rebalance()

    async def undrain(self) -> None:
        await self._stand(draining=False)
        _log.info("broker_not_drained", broker=self.broker_id)

    def standing(self) -> BrokerStatus:
        own = self.registry.statuses.own
        load = round(self.balance.load())
        return own._replace(partitions=self.ownership.held(), load=load)

    async def _stand(self, *, draining: bool) -> None:
        held, load = self.ownership.held(), self.balance.load_to_tell()
        await self.registry.statuses.tell(BrokerStatus(draining, held, load))

    async def _tell_standing(self) -> None:
        await self._stand(draining=self.registry.is_draining)

    async def let_go(self, name: TopicName, incarnation: str) -> list[int]:
        """Stop serving a topic that another broker deletes; return its partitions served here."""
        with contextlib.suppress(TopicNotFound, MetadataUnavailable, SessionExpired):
            if (await self.topics.newest(name)).incarnation == incarnation:
                raise TopicChanged(f"topic {name} is not being deleted", looked=True)
        self.topics.forget(name)
        return await self.ownership.let_go(name, incarnation)

    def duties(self) -> Duties:
        balance = self.balance
        return Duties(
            len(self.ownership.open_partitions()),
            len(balance.to_move()),
            balance.moved,
            dict(self.background_tasks.failures),
            self._leftovers.removed,
            self._context.ledgers.taken.count,
            self._context.passed_over.expired,
            self._context.passed_over.evicted,
        )

    def deletion_time(self) -> DeletionTime | None:
        return self._timekeeper.now()

    async def confirm_clock(self) -> DeletionTime | None:
        await self._timekeeper.confirm()
        return self.deletion_time()

    async def _tell_all(
        self, name: TopicName, incarnation: str, claims: frozenset[bytes]
    ) -> frozenset[int]:
        # The list may be outdated, so brokers with claims are asked too.
        found = {one.broker_id: one for one in self.registry.brokers()}
        found |= {one.broker_id: one for one in map(decode_broker, sorted(claims)) if one}
        others = [one for _, one in sorted(found.items()) if one.broker_id != self.broker_id]
        told = await asyncio.gather(
            self.let_go(name, incarnation),
            *(self._tell(one, name, incarnation) for one in others),
        )
        return frozenset(number for served in told for number in served)

    async def _tell(self, broker: BrokerInfo, name: TopicName, incarnation: str) -> list[int]:
        if self.tell_peer is None:
            return []
        try:
            async with asyncio.timeout(self.config.let_go_timeout_ms / 1000):
                return await self.tell_peer(broker, name, incarnation)
        except (OctavoError, OSError, TimeoutError) as error:
            _log.info(
                "broker_not_told", broker=broker.broker_id, topic=str(name), reason=str(error)
            )
            return []

    async def _announce_to_successor(
        self, successor: BrokerInfo, name: PartitionName, foretold: HandoverNotice
    ) -> None:
        if self.announce_to_peer is not None:
            await self.announce_to_peer(successor, name, foretold)

    async def _ask_successor(
        self, successor: BrokerInfo, name: PartitionName, handed: Handover
    ) -> None:
        if self.ask_peer is not None:
            await self.ask_peer(successor, name, handed)

    def _fail(self, error: OctavoError) -> None:
        if not self.failed.done():
            _log.critical("broker_failed", broker=self.broker_id, reason=str(error))
            self.failed.set_exception(error)

    async def _again_and_again(self, interval_ms: int, begin: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                begin()
            except Exception as error:  # a bug must not end all background rounds
                _log.error(
                    "broker_task_failed", task=begin.__name__, reason=repr(error), exc_info=error
                )

    def _begin_upkeep(self) -> None:
        self.background_tasks.begin("round", "upkeep", self._keep_up)
        self.background_tasks.begin("sweep", "bulk_loads", self._sweep_bulk_loads)

    async def _keep_up(self) -> None:
        """Maintain the partitions served here, spread over an interval; unused partitions in few
        rounds.
        """
        served, interval_s = self.ownership.open_partitions(), self.config.trim_interval_ms / 1000
        for chore in ("upkeep", "compaction"):
            self.background_tasks.keep_only(chore, [partition.name for partition in served])
        pause_s = interval_s * _KEPT_UP_AT_ONCE / (len(served) + _KEPT_UP_AT_ONCE)
        for start in range(0, len(served), _KEPT_UP_AT_ONCE):
            if start:
                await asyncio.sleep(pause_s)
            for partition in served[start : start + _KEPT_UP_AT_ONCE]:
                is_due = partition.upkeep_is_due(_QUIET_ROUNDS * interval_s)
                if is_due or self.background_tasks.has_failed("upkeep", partition.name):
                    self._look_after(partition)

    def _look_after(self, partition: Partition) -> None:
        self.background_tasks.begin("upkeep", partition.name, partition.maintain)
        if partition.compaction_is_due:
            self.background_tasks.begin("compaction", partition.name, partial(_compact, partition))
        if self.inactive.is_due(partition):
            work = partial(self.inactive.look, partition)
            self.background_tasks.begin("inactive", partition.name.topic_name, work)
        if self.streams.is_due(partition):
            work = partial(self.streams.work, partition)
            self.background_tasks.begin("streams", partition.name.topic_name, work)
        if self.inactive.expires(partition):
            work = partial(self.inactive.expire, partition)
            self.background_tasks.begin("expiry", partition.name.topic_name, work)

    async def _sweep_bulk_loads(self) -> None:
        due = await self.bulk_loads.due()
        self.background_tasks.keep_only("bulk_load", self.bulk_loads.known)
        for one in due:  # a separate task each: it may wait for a slow partition
            work = partial(self.bulk_loads.sweep, one, self._served_here)
            self.background_tasks.begin("bulk_load", one, work)

    def _sweep(self) -> None:
        self.background_tasks.begin("sweep", "deletions", self._sweep_deletions)
        self.background_tasks.begin("sweep", "leftovers", self._sweep_leftovers)
        self.background_tasks.begin("sweep", "shared_ledgers", self._sweep_shared)

    async def _sweep_deletions(self) -> None:
        await self._deletions.sweep(self._is_ours_to_sweep)

    async def _sweep_leftovers(self) -> None:
        await self._leftovers.sweep(self._is_ours_to_sweep)

    async def _sweep_shared(self) -> None:
        await self._shared.sweep(self._is_ours_to_sweep)

    def _is_ours_to_sweep(self, topic: TopicName) -> bool:
        return self.registry.preferred(topic, 1)[0].broker_id == self.broker_id

    def _tell_time(self) -> None:
        self.background_tasks.begin("clock", self.broker_id, self._timekeeper.beat)

    def _rebalance(self) -> None:
        self.balance.measure()
        self.background_tasks.begin("standing", self.broker_id, self._tell_standing)
        self.background_tasks.begin("balance", "", self.balance.look)

    async def _served_here(self, name: PartitionName) -> Partition | None:
        """Return the partition served here; None if another broker has it."""
        owner = await self.ownership.owner_of(name)
        return await self.ownership.partition(name) if owner.local else None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("broker_task_failed", task=task.get_name(), reason=repr(error))


async def _compact(partition: Partition) -> None:
    """Run compactions while they are due: with many writes, upkeep comes too rarely."""
    while partition.compaction_is_due:
        await partition.compact()
        await asyncio.sleep(_RUN_REST_S)
