"""Brokers' HTTP in the simulator: the production client on one side, `SimBroker` on the other.

`answer` does what a broker's handlers do, with their own parts. It leaves out sockets, routing and
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from octavo.broker.http.api.batching import Piece
from octavo.broker.http.api.deliveries import AckBody, by_partition, rendered
from octavo.broker.http.api.payloads import encode
from octavo.broker.http.api.publish import summarize
from octavo.broker.http.call import RECORD_BATCH
from octavo.broker.http.problems import PROBLEM_TYPE, Problem, problem_of
from octavo.broker.log.open_batches import Turns
from octavo.broker.operations.kinds import Leases, LocalOperation, Receive
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, TopicName
from octavo.client.wire import Body, Reply
from octavo.protocol.batch import check_batch
from octavo.protocol.codes import OctavoError
from tests.sim.brokers import SimBroker
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.client_load import ClientLoad

_SCHEME = "http://"
EPOCHS = "Sim-Epochs"
"""Partition → epoch of its owner, as JSON; only the referee reads it."""


class SimWire:
    """A client process's way to the brokers. The referee sees each request and answer."""

    def __init__(self, load: ClientLoad, process: Process) -> None:
        self._load = load
        self._process = process

    async def send(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        body: Body,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        follow: bool = True,
    ) -> Reply:
        assert not callable(body), "no simulated client publishes large messages"
        name, _, path = url.removeprefix(_SCHEME).partition("/")
        broker = self._load.brokers[name]
        exchange = self._load.referee.begins(path, body, self._load.loop.now)
        try:
            reply = await self._load.cluster.network.call(
                self._process,
                name,
                partial(
                    answer,
                    broker,
                    self._load.partitions,
                    method,
                    path,
                    params,
                    body or b"",
                    headers,
                ),
                timeout_s,
            )
        except BaseException:  # the client may also have given it up: the partition has moved
            self._load.referee.unanswered(exchange, self._load.loop.now)
            raise
        self._load.referee.ends(exchange, reply, self._load.loop.now)
        return reply

    def stream(
        self, url: str, params: Mapping[str, str], headers: Mapping[str, str], *, quiet_s: float
    ) -> NoReturn:
        raise NotImplementedError(url)

    async def close(self) -> None: ...


async def answer(
    broker: SimBroker,
    partitions: list[PartitionName],
    method: str,
    path: str,
    params: Mapping[str, str],
    body: bytes,
    headers: Mapping[str, str],
) -> Reply:
    try:
        return await _do(_Call(broker, partitions, params, body, headers), method, path.split("/"))
    except Problem as problem:
        return _refused(problem)
    except OctavoError as error:
        return _refused(problem_of(error))
    except (OSError, TimeoutError) as error:
        # Another broker was asked and did not answer: the outcome is unknown.
        return _refused(Problem(504, "outcome-unknown", repr(error), retryable=True))


def _refused(problem: Problem) -> Reply:
    return Reply(problem.status, {"Content-Type": PROBLEM_TYPE}, encode(problem.body()))


class _Call(SimpleNamespace):
    def __init__(
        self,
        broker: SimBroker,
        partitions: list[PartitionName],
        params: Mapping[str, str],
        body: bytes,
        headers: Mapping[str, str],
    ) -> None:
        batches = SimpleNamespace(turns=Turns())  # one per call here; in production, one per broker
        services = SimpleNamespace(broker=SimpleNamespace(open_batches=batches))
        super().__init__(headers=headers, services=services)
        self.broker, self.partitions, self.params, self.body = broker, partitions, params, body
        self.epochs: dict[str, int] = {}
        self.owner = ""

    async def at(self, name: PartitionName, work: Any, wait_s: float = 0.0) -> Any:
        """Run `work` at the owner, which may hold the call for `wait_s`; return the owner too."""

        async def noted(partition: Partition) -> Any:
            return await work(partition), partition.epoch, (await partition.stats()).broker_id

        found, epoch, self.owner = await self.broker.at_owner(name, noted, wait_s=wait_s)
        self.epochs[str(name.partition)] = epoch
        return found

    async def operate(self, operation: LocalOperation, wait_s: float = 0.0) -> Any:
        found: Any
        found, self.owner = await self.broker.operate(operation, operation, wait_s)
        self.epochs[str(operation.name.partition)] = found.epoch
        return found

    def reply(self, found: Any, status: int = 200, **headers: str) -> Reply:
        owner = self.owner if len(self.epochs) == 1 else self.broker.name
        told = {EPOCHS: encode(self.epochs).decode(), "Octavo-Owner": _SCHEME + owner, **headers}
        return Reply(status, told, b"" if found is None else encode(found))


async def _do(call: _Call, method: str, parts: list[str]) -> Reply:
    topic = TopicName(parts[2], parts[3])
    rest, name = parts[4:], None
    if rest[:1] == ["partitions"]:
        name, rest = topic.partition(int(rest[1])), rest[2:]
    elif len(call.partitions) == 1:
        name = call.partitions[0]
    if method == "GET" and not rest and parts[4:]:
        assert name is not None
        return call.reply(await call.at(name, _nothing))
    if method == "GET" and not rest:
        return call.reply({"settings": {"partitions": len(call.partitions)}})
    if rest == ["messages"]:
        assert name is not None
        return await _publish(call, name)
    if rest == ["subscriptions"]:
        return call.reply(await call.broker.with_broker(partial(_subscriptions, topic)))
    if rest[2:] == ["receive"]:
        return await _receive(call, name, rest[1])
    assert rest[2:] == ["ack"], parts
    return await _acknowledge(call, name, rest[1])


async def _nothing(partition: Partition) -> dict[str, Any]:
    return {"partition": partition.name.partition}


async def _subscriptions(topic: TopicName, broker: Any) -> dict[str, Any]:
    found = await broker.topics.list_subscriptions(topic)
    return {
        "subscriptions": [
            {"name": one.name, "settings": {"ack_timeout": one.settings.ack_timeout_ms / 1000}}
            for one in found
        ]
    }


async def _publish(call: _Call, name: PartitionName) -> Reply:
    count = check_batch(call.body).record_count
    stored = await call.broker.publish(name, call.body)
    call.epochs[str(name.partition)], call.owner = stored.epoch, stored.broker_id
    published = stored.published
    piece = Piece(name.partition, 0)
    piece.last, piece.count = count - 1, count
    piece.published = published
    if not published.duplicate:
        return call.reply(summarize([piece]))
    if published.first_offset < 0:
        return call.reply(None, 204)
    return call.reply(None, 204, **{"Next-Offset": str(published.first_offset + count)})


async def _receive(call: _Call, only: PartitionName | None, sub: str) -> Reply:
    params = call.params
    most, wait_s = int(params["max"]), float(params["wait"])
    found: list[Any] = []

    async def leases(
        name: PartitionName, most: int, wait_s: float, request: str, *, as_stored: bool
    ) -> Leases:
        asked = Receive(
            name, sub, params["consumer"], most, round(wait_s * 1000), request, as_stored=as_stored
        )
        given: Leases = await call.operate(asked, wait_s)
        return given

    if only is not None:
        as_stored = RECORD_BATCH in call.headers.get("Accept", "")
        given = await leases(only, most, wait_s, params["request"], as_stored=as_stored)
        if given.leased is not None:
            told = call.reply(None)
            headers = {**told.headers, **given.leased.headers()}
            return told._replace(headers=headers, body=b"".join(given.batches))
        found = await rendered(call, only.partition, given)  # type: ignore[arg-type]
    else:
        for number, name in enumerate(call.partitions):
            share = (most - len(found)) // (len(call.partitions) - number)
            if share:
                given = await leases(name, share, 0.0, "", as_stored=False)
                found += await rendered(call, name.partition, given)  # type: ignore[arg-type]
    return call.reply({"messages": found}) if found else call.reply(None, 204)


async def _acknowledge(call: _Call, only: PartitionName | None, sub: str) -> Reply:
    body = msgspec.json.decode(call.body, type=AckBody)
    acked, problems = 0, []
    for number, share in (await by_partition(body, len(call.partitions), Turns())).items():
        name = next(one for one in call.partitions if one.partition == number)
        assert only in (None, name)
        try:
            settled = await call.operate(share.operation(name, sub))
            acked += settled.acked
            if settled.problem is not None:
                raise settled.problem
        except OctavoError as error:
            problems.append(problem_of(error))
    if not problems:
        return call.reply({"acked": acked})
    worst = max(problems, key=lambda problem: problem.status)
    stale = [ack_id for problem in problems for ack_id in problem.extra.get("stale", ())]
    if stale:
        worst.extra["stale"] = stale
    raise worst
