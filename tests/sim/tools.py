"""Spark's side of Octavo without Spark: the seams at which a seed holds its production code.

Real are the private ledgers, the driver's calls for a batch (begin, publish, commit, abort), the
collection of orphans, each step of an offload, the Parquet of its objects, and the source's reads.
A seed replaces their access to the world: HTTP (`_Brokers._ask_one`), the connection to the
cluster, clocks, randomness, and the object store (object_store.py). Spark's processes are one
process here; sink_load.py and offload_load.py do Spark's part between these calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec

import octavo.broker.bulkload.driver
import octavo.ledger.offload.format
import octavo.ledger.offload.object_store
import octavo.pipeline.offload
import octavo.pipeline.offload_copy
import octavo.spark.cluster
import octavo.spark.commit
import octavo.spark.orphans
import octavo.spark.sink_ledgers
from octavo.broker.broker import Broker
from octavo.broker.bulkload.rules import Caller, digest_of
from octavo.broker.http.api.bulk_loads import AbortBody, BeginBody, CommitBody, committed
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.types import PartitionName, Published, TopicName
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.metadata.store import MetadataStore
from octavo.metadata.topics import TopicStore
from octavo.protocol.codes import OctavoError
from octavo.spark.cluster import Cluster
from octavo.spark.commit import SinkFailed, _Brokers
from tests.sim import cluster as sim_cluster
from tests.sim.brokers import SimBroker, watch_ledgers
from tests.sim.object_store import SimObjects
from tests.sim.process import Process, current_process
from tests.sim.tool_options import ToolOptions

SERVICE = "sim://cluster"
FOLDER = "sim://objects"
_ANSWER_S = 3.0
_AGAIN_S = 0.05
_NO_HTTP = SimpleNamespace(ClientSession=lambda **_: contextlib.nullcontext())


class ToolCluster(Cluster):
    """`octavo.spark.cluster.Cluster` with a ledger client of the simulator."""

    def __init__(self, store: MetadataStore, ledgers: LedgerClient, read_from: str) -> None:
        self._read_from = read_from
        self.store = store
        self.topics = TopicStore(store)
        self.ledgers = ledgers
        self._open = {}
        self._newest = None

    async def close(self) -> None:
        # A process that ends does not wait for a store that is away either.
        with contextlib.suppress(OctavoError):
            await super().close()


class Tools:
    """The tools' access to the simulated world."""

    def __init__(
        self, cluster: sim_cluster.Cluster, brokers: dict[str, SimBroker], options: ToolOptions
    ) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.options = options
        self.objects = SimObjects(cluster.loop, options.objects_fail_p)
        self.stored: Callable[[PartitionName, bytes, Published], None] = lambda *_: None
        """Called when a driver's publish of a batch is answered."""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Within the block, the tools run in this seed."""
        kept: list[tuple[Any, str, Any]] = []
        mute = SimpleNamespace(warning=lambda *_: None, info=lambda *_: None)
        identifiers = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=_token(16)))
        for module, name, value in (
            (octavo.broker.bulkload.driver, "_SWEEP_AFTER_MS", self.options.sweep_after_ms),
            (octavo.ledger.offload.object_store, "file_system", self.objects.file_system),
            (octavo.ledger.offload.format, "GROUP_ENTRIES_MAX", self.options.group_entries_max),
            (octavo.pipeline.offload, "connected", self.connected),
            (octavo.pipeline.offload, "uuids", identifiers),
            (octavo.pipeline.offload, "wall_clock_ms", _clock_ms),
            (octavo.pipeline.offload_copy, "Cluster", self._frozen),
            (octavo.pipeline.offload_copy, "file_system", self.objects.file_system),
            (octavo.pipeline.offload_copy, "secrets", SimpleNamespace(token_hex=_token)),
            (octavo.spark.cluster, "wall_clock_ms", _clock_ms),
            (octavo.spark.commit, "_Brokers", partial(_SimBrokers, self)),
            (octavo.spark.commit, "_PAUSE_S", _AGAIN_S),
            (octavo.spark.commit, "_urls", self._urls),
            (octavo.spark.commit, "metadata_of", self.metadata_of),
            (octavo.spark.commit, "aiohttp", _NO_HTTP),
            (octavo.spark.commit, "_log", mute),
            (octavo.spark.orphans, "connected", self.connected),
            (octavo.spark.orphans, "wall_clock_ms", _clock_ms),
            (octavo.spark.sink_ledgers, "wall_clock_ms", _clock_ms),
        ):
            kept.append((module, name, getattr(module, name)))
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in kept:
                setattr(module, name, value)

    # ------------------------------------------------------------------ the cluster

    @contextlib.asynccontextmanager
    async def connected(
        self, service: str = SERVICE, read_from: str = "auto"
    ) -> AsyncIterator[ToolCluster]:
        """Replace `octavo.spark.cluster.connected` for the calling process."""
        assert service == SERVICE
        process = _here()
        made = self._made(self.cluster.metadata_store(process), process, read_from)
        try:
            await made.start()
            yield made
        finally:
            await made.close()

    @contextlib.asynccontextmanager
    async def metadata_of(self, service: str) -> AsyncIterator[MetadataStore]:
        """Replace `octavo.spark.service.metadata_of` for the calling process."""
        async with self.connected(service) as cluster:
            yield cluster.store

    def _frozen(self, store: SnapshotStore) -> ToolCluster:
        return self._made(store, _here(), "auto")

    def _made(self, store: MetadataStore, process: Process, read_from: str) -> ToolCluster:
        ledgers = LedgerClient(
            store,
            rng=process.rng,
            options=LedgerOptions(**self.cluster.options.client),
            clock=process.clock_ms,
        )
        watch_ledgers(ledgers, self.cluster.audit, process.name)
        return ToolCluster(store, ledgers, read_from)

    # ------------------------------------------------------------------ HTTP

    async def _urls(self, service: str) -> list[str]:
        """Replace `octavo.spark.commit._urls`: the brokers in the metadata, in any order.

        Brokers that have left are not among them.
        """
        assert service == SERVICE
        names = [name for name, one in self.brokers.items() if not one.held_down]
        _here().rng.shuffle(names)
        # Leave out brokers that have left.
        return [f"sim://{name}" for name in names if not self.brokers[name].held_down]

    async def post(self, url: str, data: bytes, token: str) -> dict[str, Any]:
        """`POST` to a broker; return its answer. Raises `Problem`, `OSError`, `TimeoutError`."""
        name, _, kind, *path = url.removeprefix("sim://").split("/")
        if kind == "topics":
            return await self._post_messages(name, path, data)
        bulk_load, _, batch, what = path
        handle = {"begin": self._begin, "commit": self._commit, "abort": self._abort}[what]
        digest = digest_of(token.encode())
        work = partial(handle, self.brokers[name], bulk_load, int(batch), data, digest)
        answer: dict[str, Any] = await self.cluster.network.call(_here(), name, work, _ANSWER_S)
        return answer

    async def _post_messages(self, at: str, path: list[str], data: bytes) -> dict[str, Any]:
        """Send a record batch to a partition, through any broker."""
        namespace, topic, _, number, _ = path
        name = PartitionName(namespace, topic, int(number))
        work = partial(_published, self.brokers[at], name, data)
        done: Published = await self.cluster.network.call(_here(), at, work, _ANSWER_S)
        self.stored(name, data, done)
        return {}

    async def _begin(
        self, at: SimBroker, bulk_load: str, batch: int, body: bytes, digest: str
    ) -> dict[str, Any]:
        """Do what `octavo.broker.http.api.bulk_loads.begin` does."""

        async def work(found: Broker) -> dict[str, Any]:
            asked = msgspec.json.decode(body, type=BeginBody)
            content = {
                TopicName.parse(one.topic).partition(one.partition): one.content
                for one in asked.parts
            }
            is_new = await found.bulk_loads.begin(
                bulk_load, batch, content, partial(self._load_part, at), Caller(digest, asked.after)
            )
            return {"repeated": not is_new, "batch": batch}

        return await _answered(at, work)

    async def _commit(
        self, at: SimBroker, bulk_load: str, batch: int, body: bytes, digest: str
    ) -> dict[str, Any]:
        """Do what `octavo.broker.http.api.bulk_loads.commit` does."""

        async def work(found: Broker) -> dict[str, Any]:
            asked = msgspec.json.decode(body, type=CommitBody)
            offers = [part.offer() for part in asked.parts]
            done = await found.bulk_loads.commit(
                bulk_load,
                batch,
                offers,
                partial(self._load_part, at),
                published=asked.published,
                caller=Caller(digest, asked.after),
            )
            answer: dict[str, Any] = msgspec.to_builtins(committed(bulk_load, done))
            return answer

        return await _answered(at, work)

    async def _abort(
        self, at: SimBroker, bulk_load: str, batch: int, body: bytes, digest: str
    ) -> dict[str, Any]:
        async def work(found: Broker) -> dict[str, Any]:
            ids = msgspec.json.decode(body, type=AbortBody).ledgers
            caller = Caller(digest)
            return {"ledgers": await found.bulk_loads.abort(bulk_load, batch, ids, caller)}

        return await _answered(at, work)

    async def _load_part(
        self, at: SimBroker, name: PartitionName, bulk_load: str, batch: int
    ) -> int | None:
        """Run at the partition's owner, as `octavo.broker.http.forwarding.ask_partition` does."""
        try:
            offset: int | None = await at.at_owner(name, lambda p: p.load_part(bulk_load, batch))
        except (OSError, TimeoutError) as error:
            raise Problem(504, "outcome-unknown", f"{name}: {error!r}", retryable=True) from error
        return offset


class _SimBrokers(_Brokers):
    """The driver's calls, over the simulated network."""

    def __init__(self, tools: Tools, service: str, _: object) -> None:
        self._tools = tools
        self._service = service
        self.why = "no broker is there"
        self.token = ""

    async def _ask_one(self, url: str, data: bytes, content_type: str) -> dict[str, Any] | None:
        try:
            return await self._tools.post(url, data, self.token)
        except Problem as problem:
            self._tools.cluster.trace.probe(f"bulk_load.answer.{problem.code}")
            self.why = problem.detail
            if not problem.can_retry:
                raise SinkFailed(self.why, problem.body()) from problem
        except OSError as error:
            self._tools.cluster.trace.probe("bulk_load.no_answer")
            self.why = f"{url}: {error or type(error).__name__}"
        return None


async def _published(at: SimBroker, name: PartitionName, data: bytes) -> Published:
    try:
        done: Published = await at.at_owner(name, lambda p: p.publish(data))
    except OSError:
        raise
    except Exception as error:
        raise problem_of(error) from error
    return done


async def _answered(at: SimBroker, work: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await at.with_broker(work)
    except Exception as error:
        raise problem_of(error) from error
    return found


def _here() -> Process:
    process = current_process()
    assert process is not None, "tools run in a process"
    return process


def _token(size: int) -> str:
    return f"{_here().rng.getrandbits(8 * size):0{2 * size}x}"


def _clock_ms() -> int:
    return _here().clock_ms()
