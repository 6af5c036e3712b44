"""The referee of the offload: closed ledgers are where the records say (X6–X8, S8).

It reads the entries as brokers do, and the rows with Parquet's own reader, as engines do.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

import pyarrow.parquet as pq

from octavo.broker.types import PartitionName
from octavo.ledger.errors import OffloadDamaged
from octavo.ledger.offload.format import BY_MESSAGE, ObjectFile
from octavo.metadata.offloads import COPYING, DROPPED, OFFLOADED, is_only_copy, is_readable
from octavo.metadata.topic_records import OffloadRecord, PartitionLedger
from octavo.metadata.topics import OFFLOADS_ROOT
from octavo.protocol.windows import all_records
from tests.sim.ledger_audit import LedgerAudit
from tests.sim.metadata_tree import Change
from tests.sim.object_store import SimObjects
from tests.sim.trace import Trace

_NEXT = {None: (COPYING,), COPYING: (None, COPYING, OFFLOADED), OFFLOADED: (DROPPED,), DROPPED: ()}


class OffloadAudit:
    def __init__(
        self,
        objects: SimObjects,
        ledgers: LedgerAudit,
        trace: Trace,
        fail: Callable[[str], None],
    ) -> None:
        self.named: dict[str, int] = {}
        """Path of an object that a record names as a copy → its ledger."""
        self.intents: dict[str, None] = {}
        self._deleted: dict[int, None] = {}
        self._objects = objects
        self._ledgers = ledgers
        self._trace = trace
        self._fail = fail
        objects.on_removed.append(self._removed)

    def intent_changed(self, change: Change) -> None:
        uuid = change.path.removeprefix(OFFLOADS_ROOT + "/")
        if uuid == change.path:
            return
        if change.value is None:
            self.intents.pop(uuid, None)
        else:
            self.intents[uuid] = None

    def links_changed(
        self,
        name: PartitionName,
        old: Iterable[PartitionLedger],
        new: Iterable[PartitionLedger],
        what: str,
    ) -> None:
        before = {link.ledger_id: link.offload for link in old}
        after = {link.ledger_id: link for link in new}
        for ledger_id, offload in before.items():
            if ledger_id not in after and offload is not None and is_readable(offload):
                self.named.pop(_path(offload), None)
        for ledger_id, link in after.items():
            was = before.get(ledger_id)
            if was != link.offload:
                self._step(name, link, was, what)

    def _step(
        self, name: PartitionName, link: PartitionLedger, was: OffloadRecord | None, what: str
    ) -> None:
        now = link.offload
        state = None if was is None else was.state
        next_state = None if now is None else now.state
        told = f"{name} ledger {link.ledger_id}: {was} → {now}: {what}"
        if next_state not in _NEXT[state]:
            self._fail(f"X6 {state} → {next_state}: {told}")
        if link.count is None:
            self._fail(f"X6 an open ledger: {told}")
        if now is None:
            self._trace.probe("offload.given_up")
            return
        if was is not None and now.state != COPYING and was.uuid != now.uuid:
            self._fail(f"X6 another copy than the one that was made: {told}")
        if was is not None and now.state == COPYING:
            self._trace.probe("offload.begun_anew")
        self._trace.probe(f"offload.{now.state}")
        if is_readable(now):
            self.named[_path(now)] = link.ledger_id
            self._check_object(link.ledger_id, now, told)

    def _check_object(self, ledger_id: int, offload: OffloadRecord, told: str) -> None:
        data = self._objects.bytes_of(offload.url)
        history = self._ledgers.ledgers[ledger_id]
        if data is None or len(data) != offload.bytes:
            size = None if data is None else len(data)
            self._fail(f"X7 the object has {size} bytes, not {offload.bytes}: {told}")
            return
        sent = history.sent[: history.record.last_entry + 1]
        try:
            file = ObjectFile(io.BytesIO(data), offload.url, offload.bytes, offload.footer_crc)
            every = [one for group in range(len(file.groups)) for one in file.entries(group)]
        except OffloadDamaged as error:
            self._fail(f"X7 {error}: {told}")
            return
        found = [(one.entry_id, bytes(one.payload)) for one in every]
        if found != [*enumerate(sent)]:
            self._fail(f"X7 {len(found)} entries, not the {len(sent)} that were sent: {told}")
        table = pq.read_table(io.BytesIO(data), use_threads=False)
        if file.about.format == BY_MESSAGE:
            rows = [(row["key"], row["value"]) for row in table.to_pylist()]
            messages = [one for batch in sent[file.about.pieces :] for one in all_records(batch)]
            if rows != [(one.key, one.value) for one in messages]:
                self._fail(f"X7 {len(rows)} rows of {len(messages)} messages: {told}")

    def _removed(self, path: str) -> None:
        if path in self.named:
            self._fail(f"X7 {path} was removed, the record of ledger {self.named[path]} names it")

    def may_be_deleted(self, link: PartitionLedger) -> bool:
        if link.offload is None or not is_only_copy(link.offload):
            return False
        if link.ledger_id not in self._deleted:
            self._deleted[link.ledger_id] = None
            self._check_object(link.ledger_id, link.offload, "its ledger is deleted")
            self._trace.probe("offload.bookies_dropped")
        return True

    def partition_gone(self, links: Iterable[PartitionLedger]) -> None:
        for link in links:
            if link.offload is not None and is_readable(link.offload):
                self.named.pop(_path(link.offload), None)

    def check_whole(self, uuids: Iterable[str]) -> None:
        left = [path for path in self._objects.objects if path not in self.named]
        gone = [path for path in self.named if path not in self._objects.objects]
        if left or gone:
            self._fail(f"S8 objects that no record names: {left}; named and not there: {gone}")
        other = set(self.intents) ^ set(uuids)
        if other:
            self._fail(f"S8 intents without a copy, or copies without an intent: {sorted(other)}")


def _path(offload: OffloadRecord) -> str:
    return offload.url.partition("://")[2]
