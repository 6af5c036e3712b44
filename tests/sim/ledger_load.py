"""The ledger clients of a seed: they write, recover, follow and delete, all at once.

Each is a process with a production `LedgerClient`. Errors of the product's closed set are normal;
any other fails the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from octavo.ledger.actions import ChangeDelayed, EnsembleChanged, Forced
from octavo.ledger.errors import BeyondLastConfirmed, OutcomeUnknown
from octavo.ledger.read.reader import LedgerReader
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.ledgers import LedgerState
from octavo.protocol.codes import NoSuchEntry, NoSuchLedger, OctavoError
from octavo.protocol.entry import DigestType
from tests.sim.cluster import Cluster
from tests.sim.crowd_load import crowd
from tests.sim.sim_client import SimClient
from tests.sim.v3_load import write_v3

PASSWORD = b"sim"
ACTIVITIES = ("writing", "closing", "recovering", "tailing")
_DIGESTS = (DigestType.CRC32C, DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC)


class LedgerLoad:
    """All clients, and their work until the seed is over."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.audit = cluster.audit
        self.options = cluster.options
        self.over = False
        self.clients: list[SimClient] = []
        self.on_moment: Callable[[int], None] = lambda _: None
        """Called at a delicate moment of a ledger, so that faults can strike there."""
        self._rng = cluster.loop.stream("load")

    def start(self) -> None:
        options = self.options
        roles: tuple[tuple[str, int, Callable[[SimClient], Coroutine[Any, Any, None]]], ...] = (
            ("w", options.writers, self._write),
            ("r", options.recoverers, self._recover),
            ("t", options.tailers, self._tail),
            ("d", int(options.deletes), self._delete),
            ("p", options.v3_writers, partial(write_v3, self)),
            ("c", options.crowd, partial(crowd, self)),
        )
        for prefix, count, life in roles:
            for number in range(1, count + 1):
                client = SimClient(self.cluster, f"{prefix}{number}", life)
                client.is_recoverer = prefix == "r"
                self.clients.append(client)
                client.start()

    @property
    def doing(self) -> dict[str, None]:
        return {c.doing: None for c in self.clients if c.doing and c.is_alive}

    @property
    def is_done(self) -> bool:
        return all(
            not client.is_alive or (client.is_done and not client.pending)
            for client in self.clients
        )

    # ------------------------------------------------------------------ writers

    async def _write(self, client: SimClient) -> None:
        rng = client.rng
        for _ in range(self.options.ledgers):
            if self.over:
                return
            drawn = self.options.deferred > 0 and rng.random() < self.options.deferred
            writer = await self.create(client, deferred=drawn)
            if writer is None:
                await asyncio.sleep(rng.uniform(0.02, 0.2))
                continue
            client.doing = "writing"
            await self._fill(client, writer, rng.randint(1, self.options.entries_max))
            client.doing = "closing"
            await self._end(client, writer)
            client.doing = ""

    async def create(self, client: SimClient, *, deferred: bool) -> LedgerWriter | None:
        rng = client.rng
        e, qw, qa = rng.choice(self.options.quorums)
        try:
            writer = await client.ledgers.create(
                ensemble_size=e,
                write_quorum=qw,
                ack_quorum=qa,
                digest_type=rng.choice(_DIGESTS),
                password=PASSWORD,
                deferred_sync=deferred,
            )
        except OctavoError as error:
            self.cluster.events.add("no ledger", client.name, error)
            return None
        self.audit.began(writer.ledger_id, client.name, deferred=deferred)
        writer.on_event.append(partial(self._writer_event, writer.ledger_id))
        return writer

    def _writer_event(self, ledger_id: int, event: object) -> None:
        self.cluster.events.add("writer", ledger_id, event)
        self.cluster.trace.probe(f"writer.{type(event).__name__}")
        if isinstance(event, Forced):  # from here on it may not be lost, and readers may see it
            for entry_id in range(self.audit.ledgers[ledger_id].acked + 1, event.last_entry + 1):
                self.audit.acked(ledger_id, entry_id)
        if isinstance(event, EnsembleChanged) and self.audit.ledgers[ledger_id].is_striped:
            self.cluster.trace.probe("writer.EnsembleChanged striped")
        if isinstance(event, EnsembleChanged | ChangeDelayed):
            self.on_moment(ledger_id)

    def _summon(self, ledger_id: int) -> None:
        rng = self._rng
        if rng.random() >= self.options.summons:
            return
        self.on_moment(ledger_id)
        for client in self.clients:
            if client.is_recoverer and client.is_ready and rng.random() < 0.7:
                soon_s = rng.expovariate(1 / rng.choice((0.0003, 0.002, 0.02)))
                self.cluster.loop.world_later(soon_s, self._send_recoverer, client, ledger_id)

    def _send_recoverer(self, client: SimClient, ledger_id: int) -> None:
        if client.is_alive and client.is_ready and client.process is not None:
            client.process.spawn(self.recover(client, ledger_id), "summoned")

    async def _fill(self, client: SimClient, writer: LedgerWriter, count: int) -> None:
        rng, options = client.rng, self.options
        while count > 0 and writer.error is None:
            burst = min(count, rng.randint(1, options.pipeline))
            count -= burst
            for _ in range(burst):
                if not self.add(client, writer):
                    return
            self._summon(writer.ledger_id)
            if self.audit.ledgers[writer.ledger_id].deferred and rng.random() < 0.3:
                with contextlib.suppress(OctavoError):
                    await writer.force()
            how = rng.random()
            if how < 0.5:
                await writer.drain()
            elif how < 0.7:
                await self._answered(client, writer)
            if how > 0.6:
                await asyncio.sleep(rng.expovariate(1 / rng.choice((0.001, 0.02, 0.1))))

    def add(self, client: SimClient, writer: LedgerWriter) -> bool:
        """Add one entry; return whether the writer took it."""
        payload = self._payload(client.rng, writer)
        try:
            entry_id = writer.add(payload, partial(self._added, client, writer.ledger_id))
        except OctavoError:
            return False
        self.audit.sent(writer.ledger_id, entry_id, payload)
        client.pending[writer.ledger_id, entry_id] = None
        return True

    def _payload(self, rng: random.Random, writer: LedgerWriter) -> bytes:
        front = b"%d.%d " % (writer.ledger_id, writer.last_add_pushed + 1)
        return front + b"x" * int(rng.random() ** 2 * self.options.payload_bytes_max)

    def _added(
        self, client: SimClient, ledger_id: int, entry_id: int, error: OctavoError | None
    ) -> None:
        client.pending.pop((ledger_id, entry_id), None)
        if error is None and self.audit.ledgers[ledger_id].deferred:
            self.audit.answered_early(ledger_id, entry_id)
        elif error is None:
            self.audit.acked(ledger_id, entry_id)
        elif not isinstance(error, OutcomeUnknown):
            self.audit.refused(ledger_id, entry_id)

    async def _answered(self, client: SimClient, writer: LedgerWriter) -> None:
        mine = writer.ledger_id
        while writer.error is None and any(key[0] == mine for key in client.pending):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _end(self, client: SimClient, writer: LedgerWriter) -> None:
        rng = client.rng
        how = rng.random()
        if how < 0.6 or self.over:
            try:
                record = await writer.close()
                self.audit.closed(client.name, record)
            except OctavoError as error:
                self.cluster.events.add("not closed", client.name, writer.ledger_id, error)
        elif how < 0.8:
            await asyncio.sleep(rng.uniform(0.1, 1.0))  # idle: the LAC travels alone

    # ------------------------------------------------------------------ recoverers

    async def _recover(self, client: SimClient) -> None:
        rng = client.rng
        while not self.over:
            await asyncio.sleep(rng.expovariate(1 / 0.4))
            ledger_id = self._any_ledger(rng)
            if ledger_id is not None:
                await self.recover(client, ledger_id)

    def _any_ledger(self, rng: random.Random) -> int | None:
        found = [h for h in self.audit.ledgers.values() if not h.deleted]
        unclosed = [h for h in found if h.record.state is not LedgerState.CLOSED]
        pool = unclosed if unclosed and rng.random() < 0.9 else found
        return rng.choice(pool).ledger_id if pool else None

    async def recover(self, client: SimClient, ledger_id: int) -> bool:
        self.cluster.events.add("recovers", client.name, ledger_id)
        client.doing = "recovering"
        self.on_moment(ledger_id)
        try:
            record = await client.ledgers.recover(
                ledger_id, password=self.audit.ledgers[ledger_id].record.password
            )
        except OctavoError as error:
            self.cluster.events.add("not recovered", client.name, ledger_id, error)
            return False
        finally:
            client.doing = ""
        self.audit.closed(client.name, record)
        return True

    # ------------------------------------------------------------------ readers

    async def _tail(self, client: SimClient) -> None:
        rng = client.rng
        while not self.over:
            await asyncio.sleep(rng.expovariate(1 / 0.1))
            found = [h.ledger_id for h in self.audit.ledgers.values() if not h.deleted]
            if found:
                client.doing = "tailing"
                await self._follow(client, found[-1] if rng.random() < 0.7 else rng.choice(found))
                client.doing = ""

    async def _follow(self, client: SimClient, ledger_id: int) -> None:
        try:
            reader = await client.ledgers.open(
                ledger_id, password=self.audit.ledgers[ledger_id].record.password
            )
        except OctavoError:
            return
        self.audit.learnt(client.name, ledger_id, -1, reader.last_add_confirmed)
        end = self.cluster.loop.time() + 1.5
        next_entry = 0
        lac = reader.last_add_confirmed
        while self.cluster.loop.time() < end and not self.over:
            try:
                seen = await reader.wait_for(lac, client.rng.choice((0.05, 0.3)))
                self.audit.learnt(client.name, ledger_id, lac, seen)
                lac = seen
                next_entry = await self.read(client, reader, next_entry, lac)
            except OctavoError:
                await asyncio.sleep(0.05)
            if reader.is_closed and next_entry > lac:
                break
        await reader.close()

    async def read(self, client: SimClient, reader: LedgerReader, first: int, last: int) -> int:
        """Read and check a range; return the entry after it."""
        if first > last:
            return first
        try:
            entries = await reader.read(first, last)
        except (NoSuchEntry, NoSuchLedger) as error:
            self.audit.absent(client.name, reader.ledger_id, first, error)
            raise
        except BeyondLastConfirmed as error:
            self.audit.fail(f"S6 reader {client.name}: {error}")
            raise
        wanted, found = last + 1 - first, len(entries)
        self.audit.check(found == wanted, f"P6 {first}…{last} read, {found} entries came")
        for entry_id, entry in enumerate(entries, first):
            self.audit.check(entry.entry_id == entry_id, f"P6 entry {entry.entry_id} as {entry_id}")
            self.audit.read(client.name, reader.ledger_id, entry_id, bytes(entry.payload))
        return last + 1

    # ------------------------------------------------------------------ deletion

    async def _delete(self, client: SimClient) -> None:
        """Sometimes delete a closed ledger; its bookies find out by themselves."""
        rng = client.rng
        while not self.over:
            await asyncio.sleep(rng.expovariate(1 / 0.25))
            found = [
                h
                for h in self.audit.ledgers.values()
                if h.is_closed and not h.deleted and h.record.password == PASSWORD
            ]
            if len(found) < 2:
                continue
            ledger_id = rng.choice(found).ledger_id
            with contextlib.suppress(OctavoError):
                await client.ledgers.delete(ledger_id)
