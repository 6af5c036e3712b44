"""The members of a cluster, each on its own host: `octavo standalone`'s supervisor, spread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from octavo import AsyncClient
from octavo.process.spec import ProcessSpec
from octavo.standalone.supervisor import Plan
from tests.network.cases import FLAP_S, Case, Phase, Roles, silent
from tests.network.hosts import CLIENT, Hosts
from tests.support.kit.history import Call, Operation
from tests.support.processes.chaos import BOOKIES, SESSION_MS, Breaker, Outcome, run_round
from tests.support.processes.failpoints import Failpoint
from tests.support.processes.kills import LaunchedChild, LaunchedSupervisor, is_stopped
from tests.support.processes.users import TOPIC, Record, payload
from tests.support.processes.waiting import DEADLINE_S, more_acked
from tests.support.zookeeper_ensemble import Ensemble, Place

BROKERS = 3
SERVERS = 3
BOOKIE_PORT = 3181
BROKER_PORT = 8080
ADMIN_PORT = 9181
BOOKIE_NAMES = tuple(f"bookie-{n}" for n in range(1, BOOKIES + 1))
BROKER_NAMES = tuple(f"broker-{n}" for n in range(1, BROKERS + 1))
ZOOKEEPER_NAMES = tuple(f"zk-{n}" for n in range(1, SERVERS + 1))


def make_hosts() -> Hosts:
    hosts = Hosts((*BROKER_NAMES, *BOOKIE_NAMES, *ZOOKEEPER_NAMES))
    hosts.make()
    return hosts


def make_ensemble(hosts: Hosts, folder: Path) -> Ensemble:
    places = [
        Place(name, host=hosts.addresses[name], prefix=tuple(hosts.command(name)))
        for name in ZOOKEEPER_NAMES
    ]
    return Ensemble(folder, places, dial=hosts.socket_of)


class HostedChild(LaunchedChild):
    def __init__(self, kind: str, spec: ProcessSpec, folder: Path, hosts: Hosts) -> None:
        address = hosts.addresses[spec.name]
        own = {**spec.sections[kind], "host": address, "advertised_host": address}
        self._prefix = hosts.command(spec.name)
        super().__init__(
            kind, dataclasses.replace(spec, sections={**spec.sections, kind: own}), folder
        )

    @property
    def command(self) -> list[str]:
        return [*self._prefix, *super().command]


class HostedSupervisor(LaunchedSupervisor):
    def __init__(self, plan: Plan, hosts: Hosts) -> None:
        self._hosts = hosts
        super().__init__(dataclasses.replace(plan, brokers=BROKERS))

    def _launched(self, kind: str, spec: ProcessSpec, folder: Path) -> LaunchedChild:
        child = self.launched[spec.name] = HostedChild(kind, spec, folder, self._hosts)
        return child

    def _port(self, kind: str, number: int, name: str, former: int) -> int:
        return {"bookie": BOOKIE_PORT, "broker": BROKER_PORT, "admin": ADMIN_PORT}[kind]


_ANSWER_S = 1.0
_PROBE_PAUSE_S = 0.2


@contextlib.asynccontextmanager
async def probes(hosts: Hosts, names: list[str], record: Record) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_probe(hosts, name, record)) for name in names]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


def probe_name(host: str) -> str:
    return f"at {host}"


async def _probe(hosts: Hosts, name: str, record: Record) -> None:
    """Send one message at a time, each under a new key, without repeats."""
    url = f"http://{hosts.addresses[name]}:{BROKER_PORT}/v1/topics/public/{TOPIC}/messages"
    connector = aiohttp.TCPConnector(socket_factory=lambda _: hosts.socket_of(name))
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        while True:
            number = record.sent
            text = payload(name.replace("-", ""), number)
            key = f"{name}-{number}"
            record.sent += 1
            record.keys[text] = key
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                with record.history.during(probe_name(name), Call.SEND, value=text, key=key) as one:
                    async with session.post(
                        url, data=text.encode(), headers={"Octavo-Key": key}
                    ) as response:
                        response.raise_for_status()
                        first = (await response.json())["first"]
                    one.log, one.result = str(first["partition"]), first["offset"]
                record.acked += 1
            await asyncio.sleep(_PROBE_PAUSE_S)


def acked(record: Record, process: str, since: float) -> list[Operation]:
    """Return sends of processes with this name prefix, begun after `since`, acked by now."""
    found = []
    for one in reversed(record.history.operations):
        if one.invoked_at < since:
            break
        if one.call is Call.SEND and one.is_ok and one.process.startswith(process):
            found.append(one)
    return found


def unanswered(record: Record, before: float, since: float) -> int:
    return sum(
        one.completed_at is None and since <= one.invoked_at < before
        for one in record.history.operations
        if one.call is Call.SEND
    )


async def is_ready(session: aiohttp.ClientSession, hosts: Hosts, broker: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        url = f"http://{hosts.addresses[broker]}:{BROKER_PORT}/readyz"
        async with session.get(url) as response:
            return response.status == 200
    return False


async def registered(session: aiohttp.ClientSession, hosts: Hosts, broker: str) -> tuple[int, int]:
    base = f"http://{hosts.addresses[broker]}:{BROKER_PORT}/v1"
    counts = [0, 0]
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        for number, what in enumerate(("bookies", "brokers")):
            async with session.get(f"{base}/{what}") as response:
                response.raise_for_status()
                counts[number] = len((await response.json())[what])
    return counts[0], counts[1]


def plain_session() -> aiohttp.ClientSession:
    """Open a new connection for each question, with short deadlines."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True),
        timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
    )


class Logs:
    def __init__(self, folder: Path) -> None:
        self._paths = sorted((folder / "logs").glob("*.jsonl"))
        self._starts = {path: path.stat().st_size for path in self._paths}
        self.began = time.time()

    def events(self, event: str) -> Iterator[dict[str, object]]:
        for path in self._paths:
            with open(path, "rb") as file:
                file.seek(self._starts[path])
                for line in file:
                    if line.startswith(b"{") and line.endswith(b"\n"):
                        found = json.loads(line)
                        if found["event"] == event:
                            yield found


HOLD_S = 2.5 * SESSION_MS / 1000
"""Longer than a session, the take-over after it, and a few publishes to the new owner."""
RECOVERY_GOAL_S = 10.0
RATE = 20.0
_STOP_AT = {
    Phase.ROLL_OVER: Failpoint("ledger.close", "before", action="stop"),
    Phase.TAKE_OVER: Failpoint("ledger.recover", "after", action="stop"),
}


@dataclass(slots=True)
class Cell:
    case: str
    phase: str
    acked_while_cut: int = 0
    silent: list[str] = field(default_factory=list)
    """Hosts from which no publish could be acked, though it was tried on each."""
    acks_of_silent: int = 0
    take_over_s: float | None = None
    """From the cut until every partition of a lost owner had acked something elsewhere."""
    publishing_s: float | None = None
    """From the heal until each partition took new messages and all old calls were answered."""
    recovery_s: float | None = None
    """From the heal until all are registered and ready, too."""
    wrong: list[str] = field(default_factory=list)
    unfinished: str = ""
    """Why it was not judged, for example because the machine was too busy."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class Partitioner:
    def __init__(
        self,
        hosts: Hosts,
        ensemble: Ensemble,
        cells: Sequence[tuple[Case, Phase]],
        tell: Callable[[Cell], None],
    ) -> None:
        self._hosts = hosts
        self._ensemble = ensemble
        self._plan = cells
        self._tell = tell
        self.cells: list[Cell] = []

    async def run(self, folder: Path, rng: random.Random) -> Outcome:
        chroot = f"/net-{folder.name}"
        return await run_round(
            folder,
            rng,
            self._trouble,
            f"zk://{self._ensemble.hosts}{chroot}",
            make_supervisor=lambda plan: HostedSupervisor(plan, self._hosts),
            rate=RATE,
            quorums=((3, 3, 2),),
        )

    async def _trouble(self, breaker: Breaker, record: Record) -> None:
        supervisor = breaker.supervisor
        assert isinstance(supervisor, HostedSupervisor)
        try:
            for case, phase in self._plan:
                cell = Cell(case.name, phase.value)
                self.cells.append(cell)
                breaker.log.append(f"{case.name}, {phase}")
                await self._cell(supervisor, record, case, phase, cell)
                self._tell(cell)
        finally:
            await self._hosts.impair({})

    async def _cell(
        self, supervisor: HostedSupervisor, record: Record, case: Case, phase: Phase, cell: Cell
    ) -> None:
        await more_acked(record, 50)
        roles = await self._roles(supervisor)
        lost, asleep = "", list[str]()
        if phase is Phase.ROLL_OVER:
            asleep = await self._stop_at(supervisor, [roles.owner], phase)
        elif phase is Phase.TAKE_OVER:
            lost = roles.owner
            others = [name for name in roles.brokers if name != lost]
            asleep = await self._stop_at(supervisor, others, phase, killing=lost)
            owner = asleep[0]
            other = next(name for name in others if name != owner)
            roles = replace(roles, owner=owner, other=other, brokers=(owner, other))
        loss = case.loss(roles)
        cell.silent = [] if case.flaps else silent(loss, roles)
        logs = Logs(supervisor.plan.folder)
        served = await self._served_by(roles.owner) if phase is Phase.STEADY else set()
        await self._hosts.impair(loss, case.late(roles))
        cut_at = time.monotonic()
        for name in asleep:
            supervisor.signal(name, signal.SIGCONT)
        brokers = [name for name in cell.silent if name != CLIENT]
        async with probes(self._hosts, brokers, record):
            await self._hold(case, loss, record, cut_at, phase, cell)
            cell.acked_while_cut = len(acked(record, "p", cut_at))
            cell.acks_of_silent = sum(
                len(acked(record, "p" if name == CLIENT else probe_name(name), cut_at))
                for name in cell.silent
            )
        await self._hosts.impair({})
        await self._until_well(record, cell, roles.brokers, cut_at)
        cell.take_over_s = take_over_s(logs, record, served, roles.owner, cut_at)
        if lost:
            await supervisor.resume(lost)
            await self._until_members(BROKER_NAMES)
        if cell.acks_of_silent:
            cell.wrong.append(f"{cell.acks_of_silent} acks on the minority side, {cell.silent}")

    async def _roles(self, supervisor: HostedSupervisor) -> Roles:
        await self._until_members(BROKER_NAMES)
        async with AsyncClient(supervisor.cluster.urls) as client, asyncio.timeout(DEADLINE_S):
            while True:
                stats = (await client.topic(TOPIC)).stats["partitions"]
                if all(one.get("owner") for one in stats) and stats[0]["ledgers"]:
                    break
                await asyncio.sleep(0.05)
            ledger = await client.ledger(stats[0]["ledgers"][-1]["id"])
        owner = stats[0]["owner"]
        ensemble = tuple(ledger["fragments"][-1]["bookies"])
        spare = [f"bookie-{n}" for n in range(1, BOOKIES + 1) if f"bookie-{n}" not in ensemble]
        return Roles(
            owner=owner,
            other=next(name for name in BROKER_NAMES if name != owner),
            brokers=BROKER_NAMES,
            bookies=(*ensemble, *spare),
            zk_leader=await asyncio.to_thread(self._ensemble.leader),
            zookeepers=tuple(self._ensemble.places),
        )

    async def _stop_at(
        self, supervisor: HostedSupervisor, names: Sequence[str], phase: Phase, killing: str = ""
    ) -> list[str]:
        """Let `names` fall asleep in the middle of `phase`; the first to do so leads."""
        children = [supervisor.launched[name] for name in names]
        for child in children:
            child.trigger.arm(_STOP_AT[phase])
        if killing:
            supervisor.signal(killing, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            while not (found := [c.name for c in children if is_stopped(c.pid)]):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        for child in children:
            child.trigger.disarm()
        return [*found, *(name for name in names if name not in found)]

    async def _served_by(self, owner: str) -> set[str]:
        urls = [f"http://{self._hosts.addresses[name]}:8080" for name in BROKER_NAMES]
        async with AsyncClient(urls) as client:
            stats = (await client.topic(TOPIC)).stats["partitions"]
        return {f"public/{TOPIC}/{n}" for n, one in enumerate(stats) if one["owner"] == owner}

    async def _hold(
        self,
        case: Case,
        loss: Mapping[tuple[str, str], float],
        record: Record,
        cut_at: float,
        phase: Phase,
        cell: Cell,
    ) -> None:
        """Hold for `HOLD_S`, and until publishing has gone on, where it must."""
        goes_on = case.goes_on and phase is Phase.STEADY
        deadline = cut_at + DEADLINE_S
        while True:
            held_s = time.monotonic() - cut_at
            if held_s >= HOLD_S and (not goes_on or len(acked(record, "p", cut_at)) >= RATE):
                return
            if time.monotonic() > deadline:
                cell.wrong.append(f"publishing did not go on within {DEADLINE_S} s")
                return
            if case.flaps:
                await asyncio.sleep(FLAP_S)
                await self._hosts.impair({})
                await asyncio.sleep(FLAP_S)
                await self._hosts.impair(loss)
            else:
                await asyncio.sleep(0.05)

    async def _until_well(
        self, record: Record, cell: Cell, brokers: Sequence[str], cut_at: float
    ) -> None:
        healed_at = time.monotonic()
        partitions = {one.log for one in record.history if one.call == "send" and one.log}
        async with asyncio.timeout(DEADLINE_S):
            while True:
                took = {one.log for one in acked(record, "p", healed_at)}
                if took >= partitions and not unanswered(record, healed_at, cut_at):
                    break
                await asyncio.sleep(0.02)
        cell.publishing_s = time.monotonic() - healed_at
        await self._until_members(brokers)
        cell.recovery_s = time.monotonic() - healed_at

    async def _until_members(self, brokers: Sequence[str]) -> None:
        async with plain_session() as session, asyncio.timeout(DEADLINE_S):
            for name in brokers:
                while not await is_ready(session, self._hosts, name) or (  # noqa: ASYNC110
                    await registered(session, self._hosts, name)
                ) != (BOOKIES, len(brokers)):
                    await asyncio.sleep(0.02)


def take_over_s(
    logs: Logs, record: Record, partitions: set[str], owner: str, cut_at: float
) -> float | None:
    """Return the time from the cut until the last of `partitions` had an ack at a new owner, or
    None."""
    monotonic_since = time.time() - time.monotonic()
    opened: dict[str, float] = {}
    for event in logs.events("partition_taken_over"):
        if event["broker"] != owner:
            at = datetime.fromisoformat(str(event["ts"])).timestamp() - monotonic_since
            opened.setdefault(str(event["partition"]), at)
    first: dict[str, float] = {}
    for one in record.history:
        name = f"public/{TOPIC}/{one.log}"
        if one.call is not Call.SEND or not one.is_ok or name not in partitions & set(opened):
            continue
        assert one.completed_at is not None
        if one.completed_at >= opened[name]:
            first[name] = min(first.get(name, one.completed_at), one.completed_at)
    if not partitions or set(first) != partitions:
        return None
    return max(first.values()) - cut_at
