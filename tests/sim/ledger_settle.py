"""The end of a seed: after the faults, everything must finish in bounded time and match the
promises.

The judge recovers each open ledger, writes a new one and reads everything. Then it compares each
copy on each bookie, takes the power from bookies, discards an index, and compares the state after
the restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from octavo.bookie.disk.damage import DamagedRead
from octavo.bookie.storage import Storage
from octavo.ledger.errors import LedgerNotFound
from octavo.protocol.codes import NoSuchEntry, NoSuchLedger, OctavoError
from octavo.protocol.entry import HEADER
from tests.sim.cluster import Cluster, SimBookie
from tests.sim.copies import whole
from tests.sim.garbage_audit import deleted_held, left_over
from tests.sim.ledger_audit import LedgerHistory, covered
from tests.sim.ledger_load import PASSWORD, LedgerLoad
from tests.sim.sim_client import SimClient

_PAUSE_S = 0.1
_LAST_ENTRIES = 3
_WRITES_AGAIN_S_MAX = 10.0
_CLEAN_S_MAX = 15.0
_CLEAN_LEDGER_S = 0.03
"""More time for each ledger, because collecting is limited to a byte rate."""
COLLECT_LEDGER_S_MAX = 0.5
"""The longest time to collect, for each ledger. At its slowest a round deletes fifteen ledgers
(each takes two of its thirty lookups), and reads and copies 600 kB."""
_READS_AGAIN_S_MAX = 10.0
_WHOLE_S_MAX = 20.0


class LedgerImage(NamedTuple):
    entries: frozenset[int]
    fenced: bool
    deleted: bool
    key: bytes
    last_add_confirmed: int


class Judge:
    def __init__(
        self, cluster: Cluster, load: LedgerLoad, must_close: Callable[[LedgerHistory], bool]
    ) -> None:
        self.cluster = cluster
        self._must_close = must_close
        self.load = load
        self.audit_of = cluster.audit
        self.settled = False
        self.audited = False
        self._rng = cluster.loop.stream("judge")

    def settle(self) -> None:
        SimClient(self.cluster, "judge", self._settle).start()

    def audit(self) -> None:
        """Begin; `audited` becomes true when everything has been looked at."""
        self._spawn(self._audit())

    async def close_all(self) -> None:
        """Recover all open ledgers, so that many are closed when the metadata is turned back."""
        await self._as_client("closer", self._close_open)

    async def look_at(self, kept: Sequence[LedgerHistory], count: int) -> None:
        async def look(client: SimClient) -> None:
            for _ in range(count):
                await self._write(client)
            for history in kept:
                await self._read_all(client, history)

        await self._as_client("judge", look)

    async def _as_client(
        self, name: str, life: Callable[[SimClient], Coroutine[Any, Any, None]]
    ) -> None:
        client = SimClient(self.cluster, name, life)
        client.start()
        await self._until(lambda: client.is_done)
        client.crash(power=False)

    async def _close_open(self, client: SimClient) -> None:
        for history in list(self.audit_of.ledgers.values()):
            await self._close(client, history)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.cluster.loop.world.spawn(work, "judge")

    # ------------------------------------------------------------------ settling

    async def _settle(self, client: SimClient) -> None:
        await self._until(lambda: self.cluster.all_serve)
        if self._rng.random() < 0.5:
            await self._until(lambda: self.load.is_done)
        await self._close_open(client)
        await self._until(lambda: self.load.is_done)
        await self._close_open(client)
        if not self.cluster.options.beyond:
            await self._write(client)
        for history in list(self.audit_of.ledgers.values()):
            await self._read_all(client, history)
        await self._writable()
        if self.cluster.options.keeps_copies and not self.cluster.options.beyond:
            await self._whole()
        await self._clean()
        self.settled = True

    async def _writable(self) -> None:
        """Wait until a bookie whose disk has room takes adds again, by itself."""
        loop = self.cluster.loop
        healed_s = loop.time()
        for bookie in self.cluster.bookies.values():
            while bookie.node is not None and bookie.node.read_only:
                if loop.time() - healed_s > _WRITES_AGAIN_S_MAX:
                    self.audit_of.fail(f"S8 {bookie.name} has room and is read-only still")
                    return
                await asyncio.sleep(_PAUSE_S)

    async def _whole(self) -> None:
        loop = self.cluster.loop
        healed_s = loop.time()
        while missing := whole(self.cluster.bookies, self.audit_of.ledgers.values()):
            if loop.time() - healed_s > _WHOLE_S_MAX:
                self.audit_of.fail(f"S8 {_WHOLE_S_MAX} s after: {missing}")
                return
            await asyncio.sleep(_PAUSE_S)

    async def _clean(self) -> None:
        """Wait until deleted ledgers have left the disks of every bookie that lost nothing.

        The number of lookups in a round and the read rate are drawn. Hundreds of ledgers may take
        long, so no bound in seconds can tell slow collection from a collector that hangs. The judge
        waits while ledgers go: each goes once, and no more are made.
        """
        loop = self.cluster.loop
        patience_s = _CLEAN_S_MAX + _CLEAN_LEDGER_S * len(self.audit_of.ledgers)
        for bookie in self.cluster.bookies.values():
            held, moved_s = deleted_held(bookie), loop.time()
            while bookie.name not in self.audit_of.damaged and (left := left_over(bookie)):
                before, held = held, deleted_held(bookie)
                if not before.keys() <= held.keys():
                    moved_s = loop.time()
                if loop.time() - moved_s > patience_s:
                    self.audit_of.fail(f"S8 for {patience_s:.1f} s nothing went: {left}")
                    return
                await asyncio.sleep(_PAUSE_S)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)

    async def _close(self, client: SimClient, history: LedgerHistory) -> None:
        """Recover a ledger until it is closed. A recovery without enough copies may fail."""
        attempts = 0
        while not (history.is_closed or history.deleted):
            await self.load.recover(client, history.ledger_id)
            attempts += 1
            if attempts >= 3 and (self.cluster.options.beyond or not self._must_close(history)):
                self.cluster.trace.probe("judge.left_open")
                return
            await asyncio.sleep(_PAUSE_S)

    async def _write(self, client: SimClient) -> None:
        """Check that a writer makes progress soon. A bookie takes its disk for full until it looks
        again."""
        loop = self.cluster.loop
        healed_s = loop.time()
        while not await self._has_written(client):
            late = loop.time() - healed_s > _WRITES_AGAIN_S_MAX
            self.audit_of.check(
                not late, f"S8 no ledger could be written {_WRITES_AGAIN_S_MAX} s after"
            )
            await asyncio.sleep(_PAUSE_S)

    async def _has_written(self, client: SimClient) -> bool:
        up = sum(bookie.serving for bookie in self.cluster.bookies.values())
        fitting = [quorum for quorum in self.cluster.options.quorums if quorum[0] <= up]
        if not fitting:
            return True
        e, qw, qa = self._rng.choice(fitting)
        try:
            writer = await client.ledgers.create(
                ensemble_size=e, write_quorum=qw, ack_quorum=qa, password=PASSWORD
            )
        except OctavoError as error:
            self.cluster.events.add("no ledger", "judge", error)
            return False
        self.audit_of.began(writer.ledger_id, client.name)
        for _ in range(_LAST_ENTRIES):
            self.load.add(client, writer)
        record = await writer.close()
        self.audit_of.closed("judge", record)
        return record.last_entry == _LAST_ENTRIES - 1

    async def _read_all(self, client: SimClient, history: LedgerHistory) -> None:
        """Check that all of a closed ledger can be read soon. A slow call from before the heal, or
        a registration on its way, may cost an attempt."""
        loop = self.cluster.loop
        began_s = loop.time()
        while history.is_closed and not history.deleted:
            try:
                await self._read_once(client, history)
                return
            except LedgerNotFound:
                self.audit_of.check(history.deleted, f"S1 ledger {history.ledger_id} is gone")
                return
            except OctavoError as error:
                if self.cluster.options.beyond or history.deleted:
                    return
                late = loop.time() - began_s > _READS_AGAIN_S_MAX
                self.audit_of.check(not late, f"S1 ledger {history.ledger_id}: {error}")
                await asyncio.sleep(_PAUSE_S)

    async def _read_once(self, client: SimClient, history: LedgerHistory) -> None:
        reader = await client.ledgers.open(history.ledger_id, password=history.record.password)
        next_entry = 0
        while next_entry <= reader.last_add_confirmed:
            step = self._rng.choice((1, 5, 1000))
            last = min(reader.last_add_confirmed, next_entry + step - 1)
            next_entry = await self.load.read(client, reader, next_entry, last)
        await reader.close()

    # ------------------------------------------------------------------ every copy

    async def _audit(self) -> None:
        for bookie in self.cluster.bookies.values():
            await self._in(bookie, self._check_copies(bookie))
        for bookie in self.cluster.bookies.values():
            if bookie.refused is None and self._rng.random() < 0.5:
                await self._reopen(bookie)
            elif bookie.node is not None:
                bookie.count(bookie.node.storage)
        self.audited = True

    async def _in(self, bookie: SimBookie, work: Coroutine[Any, Any, None]) -> None:
        if bookie.node is None or bookie.process is None:
            work.close()
            return
        await bookie.process.spawn(work, "audit")

    async def _check_copies(self, bookie: SimBookie) -> None:
        """Check each entry that a bookie ever reported durable, as it is on its disk."""
        assert bookie.node is not None
        audit, storage = self.audit_of, bookie.node.storage
        scrubbed = await self._scrubbed(bookie, storage)
        for ledger_id, entries in list(audit.held[bookie.name].items()):
            history = audit.ledgers.get(ledger_id)
            if history is None or history.deleted:
                continue
            extra = covered(storage, ledger_id) - set(range(len(history.sent)))
            audit.check(not extra, f"P6 {bookie.name} holds {ledger_id} {extra}, never sent")
            for entry_id in sorted(entries):
                try:
                    data = await storage.reads.read(ledger_id, entry_id)
                except (NoSuchEntry, NoSuchLedger) as error:
                    audit.check(history.deleted, f"P41 {bookie.name}: {error}")
                    break
                except OctavoError as error:
                    damaged = not audit.must_keep(bookie.name, ledger_id)
                    audit.check(damaged, f"P38 {bookie.name} cannot read what it holds: {error}")
                    if isinstance(error, DamagedRead):
                        known = scrubbed is None or error.damage.path in scrubbed
                        audit.check(known, f"P41 {bookie.name} scrubs over damage: {error}")
                        self.cluster.trace.probe("judge.damage_was_known")
                    continue
                self._check_bytes(bookie, history, entry_id, data)

    async def _scrubbed(self, bookie: SimBookie, storage: Storage) -> set[str] | None:
        """Return the files with damage that a whole pass of the scrubber has found, or None without
        a pass."""
        if self.audit_of.damaged.get(bookie.name) != "rotten":
            return None
        # forget what readers met, so that the scrubber has to find it
        storage.damages._found.clear()
        passes = storage.scrubber.passes
        await self._until(lambda: storage.scrubber.passes > passes + 1)
        return {damage.path for damage in storage.damages.current()}

    def _check_bytes(
        self, bookie: SimBookie, history: LedgerHistory, entry_id: int, data: bytes
    ) -> None:
        ledger_id = history.ledger_id
        if not self.audit_of.must_keep(bookie.name, ledger_id):
            return
        what = f"{bookie.name} ledger {ledger_id} entry {entry_id}"
        known = self.audit_of.bytes.setdefault((ledger_id, entry_id), data)
        self.audit_of.check(data == known, f"S4 {what}: not the bytes of another copy")
        payload = history.sent[entry_id]
        its_ledger, its_entry, lac, length = HEADER.unpack_from(data)
        ids = (its_ledger, its_entry) == (ledger_id, entry_id)
        self.audit_of.check(ids and data.endswith(payload), f"S4 {what}: other content")
        total = sum(map(len, history.sent[: entry_id + 1]))
        self.audit_of.check(length == total, f"P11 {what}: length {length}, not {total}")
        self.audit_of.check(lac < entry_id, f"P16 {what}: LAC {lac}")

    async def _reopen(self, bookie: SimBookie) -> None:
        """Fail the power, restart, and check that the replayed state equals the earlier state."""
        if bookie.node is None:
            return
        storage: Any = bookie.node.storage
        await self._until(lambda: all(one._committer is None for one in storage._journals))
        before = image_of(storage)
        unsure = set(storage.control._unsure_fences)
        without_index = self._rng.random() < 0.4
        bookie.power_loss()
        if without_index:
            bookie.disk.indexes.kept.clear()
        bookie.start()
        await self._until(lambda: bookie.serving or bookie.refused is not None)
        if bookie.node is None:
            self.audit_of.check(
                bookie.name in self.audit_of.damaged, f"P38 {bookie.name}: {bookie.refused}"
            )
            return
        after = image_of(bookie.node.storage)
        how = "index rebuilt, " if without_index else ""
        for ledger_id, image in before.items():
            found = after.get(ledger_id)
            if self.audit_of.is_deleted(ledger_id):
                continue  # a bookie may learn of it at any time
            if found is not None and ledger_id in unsure:
                # The record of that fence was refused, and no caller got an answer.
                image = image._replace(fenced=found.fenced)
            if found is not None and found.last_add_confirmed > image.last_add_confirmed:
                # A writer tells its idle ledger's LAC to a bookie that came back.
                image = image._replace(last_add_confirmed=found.last_add_confirmed)
            if found != image and self.audit_of.must_keep(bookie.name, ledger_id):
                self.audit_of.fail(
                    f"P40 {bookie.name} came back ({how}power lost) with ledger {ledger_id} "
                    f"{found}, was {image}"
                )


def image_of(storage: Storage) -> dict[int, LedgerImage]:
    found: dict[int, LedgerImage] = {}
    for ledger_id in storage._states.all_ids():
        state = storage._states.get(ledger_id)
        assert state is not None
        entries = frozenset() if state.deleted else frozenset(covered(storage, ledger_id))
        if entries or state.fenced or state.deleted:
            found[ledger_id] = LedgerImage(
                entries, state.fenced, state.deleted, state.key, state.last_add_confirmed
            )
    return found
