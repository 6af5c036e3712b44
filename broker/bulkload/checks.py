"""Check a batch's parts before its commit, by reading metadata and bookies.

The topics and partitions must exist, and the ledgers must be this batch's by their metadata,
closed, meant for that partition, and have the promised content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.broker.bulkload import rules
from octavo.broker.errors import (
    INVALID_BULK_LOAD,
    PartitionNotFound,
    TooManyLedgers,
    TopicNotFound,
)
from octavo.broker.types import PartitionName, TopicName
from octavo.ledger.client import LedgerClient
from octavo.ledger.encryption import plain_length, wrapped_of
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.bulk_loads import BulkLoadPart, PrivateLedger
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.store import RecordNotFound
from octavo.metadata.topics import PartitionRecord, TopicRecord, TopicStore
from octavo.protocol.batch import read_header
from octavo.protocol.large import large_body_of
from octavo.protocol.records import read_records


class Offer(NamedTuple):
    """The ledgers that a caller wants to add to a partition."""

    name: PartitionName
    ledgers: tuple[PrivateLedger, ...]


class Checks:
    """Reads metadata and ledgers, and checks them."""

    def __init__(self, records: TopicStore, ledgers: LedgerClient) -> None:
        self._records = records
        self._ledgers = ledgers

    async def topic(self, namespace: str, topic: str) -> TopicRecord | None:
        """Read the topic from the store: a watched copy may be of a deleted topic of that name."""
        try:
            record, _ = await self._records.read_topic(namespace, topic)
        except RecordNotFound:
            return None
        return record if record.stands else None

    async def partition_record(self, name: PartitionName) -> PartitionRecord:
        """Read the partition's record from the store; an empty record if there is none."""
        try:
            return (await self._records.read_partition(*name))[0]
        except RecordNotFound:
            return PartitionRecord()

    async def parts(
        self, bulk_load: str, batch: int, offers: Sequence[Offer], at_once: int
    ) -> tuple[BulkLoadPart, ...]:
        """Check the offers and return the parts for the record."""
        ids = [ledger.ledger_id for offer in offers for ledger in offer.ledgers]
        names = [offer.name for offer in offers]
        if len(set(ids)) < len(ids) or len(set(names)) < len(names):
            raise INVALID_BULK_LOAD("a ledger, or a partition, is named twice in the bulk load")
        if len(ids) > rules.LEDGERS_MAX:
            raise TooManyLedgers(
                f"{len(ids)} ledgers in one bulk load; at most {rules.LEDGERS_MAX}: write with "
                "fewer tasks (coalesce), or in smaller batches"
            )
        turn = asyncio.Semaphore(at_once)

        async def one(offer: Offer) -> BulkLoadPart:
            topic, there = await self._check_partition(offer)
            if any(ledger.pieces for ledger in offer.ledgers):
                rules.check_large_taken(offer.name, topic.settings, len(there))
            for ledger in offer.ledgers:
                async with turn:
                    await self._check_ledger(bulk_load, batch, offer.name, ledger, topic)
                if ledger.ledger_id in there:
                    # A repeat of a remembered batch never gets here.
                    raise INVALID_BULK_LOAD(
                        f"{offer.name} has ledger {ledger.ledger_id} already: the batch was "
                        "committed, and its bulk load forgotten since"
                    )
            return BulkLoadPart(
                *offer.name, topic.created_ms, offer.ledgers, topic_incarnation=topic.identity
            )

        return tuple(await asyncio.gather(*(one(offer) for offer in offers if offer.ledgers)))

    async def _check_partition(self, offer: Offer) -> tuple[TopicRecord, set[int]]:
        """Return the topic, and the partition's ledgers.

        The store was synced when the bulk load was read.
        """
        topic = await self._check_exist(offer.name.topic_name, [offer.name])
        there = {segment.ledger_id for segment in (await self.partition_record(offer.name)).ledgers}
        count = len(there)
        if count + len(offer.ledgers) > rules.LEDGERS_MAX:
            raise TooManyLedgers(
                f"{offer.name} has {count} ledgers; with {len(offer.ledgers)} more it would have "
                f"more than {rules.LEDGERS_MAX}: let retention remove some, or write larger batches"
            )
        return topic, there

    async def exist(self, names: Iterable[PartitionName]) -> None:
        """Raise `TopicNotFound` or `PartitionNotFound` if one does not exist."""
        by_topic: dict[TopicName, list[PartitionName]] = {}
        for name in names:
            by_topic.setdefault(name.topic_name, []).append(name)
        for topic, of in by_topic.items():
            await self._check_exist(topic, of)

    async def _check_exist(
        self, name: TopicName, partitions: Iterable[PartitionName]
    ) -> TopicRecord:
        topic = await self.topic(*name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name}; PUT /v1/topics/{name} makes it")
        for one in partitions:
            if not 0 <= one.partition < topic.settings.partitions:
                raise PartitionNotFound(
                    f"topic {name} has partitions 0 to {topic.settings.partitions - 1}, "
                    f"not {one.partition}"
                )
        return topic

    async def _check_ledger(
        self,
        bulk_load: str,
        batch: int,
        name: PartitionName,
        ledger: PrivateLedger,
        topic: TopicRecord,
    ) -> None:
        try:
            found = await self._ledgers.metadata(ledger.ledger_id)
        except LedgerNotFound as error:
            raise INVALID_BULK_LOAD(f"{error}; write the batch again") from error
        check_owner(found, bulk_load, batch)
        meant_for = found.custom.get(rules.PARTITION_KEY, b"").decode("utf-8", "replace")
        if meant_for != str(name):
            raise INVALID_BULK_LOAD(f"ledger {ledger.ledger_id} is for {meant_for}, not {name}")
        if found.state is not LedgerState.CLOSED or found.last_entry < 0:
            raise INVALID_BULK_LOAD(
                f"ledger {ledger.ledger_id} is {found.state.name} with last entry "
                f"{found.last_entry}; it must be closed and not empty"
            )
        if ledger.pieces is not None and not found.last_entry == ledger.pieces == ledger.count - 1:
            raise INVALID_BULK_LOAD(
                f"ledger {ledger.ledger_id} has {ledger.count} messages in {found.last_entry + 1} "
                f"entries: with {ledger.pieces} pieces of a large message it would have one more "
                "of each"
            )
        wrapped = wrapped_of(found)
        if topic.settings.encrypted and (wrapped is None or wrapped.namespace != name.namespace):
            raise INVALID_BULK_LOAD(
                f"ledger {ledger.ledger_id} is not encrypted for namespace {name.namespace}, whose "
                "topics are: write the batch again with that namespace's key"
            )
        reader = await self._ledgers.open(ledger.ledger_id)
        try:
            (entry,) = await reader.read(found.last_entry, found.last_entry)
        finally:
            await reader.close()
        header = read_header(entry.payload)
        count = header.base_offset + header.record_count
        size = plain_length(found)
        if (count, size) != (ledger.count, ledger.bytes):
            raise INVALID_BULK_LOAD(
                f"ledger {ledger.ledger_id} has {count} messages in {size} bytes, "
                f"not {ledger.count} in {ledger.bytes}"
            )
        if ledger.pieces is not None:
            *_, message = read_records(entry.payload)
            large = large_body_of(message.headers)
            is_one = header.record_count == 1 and not message.value
            if not is_one or large is None or large.pieces != ledger.pieces:
                raise INVALID_BULK_LOAD(
                    f"ledger {ledger.ledger_id} does not end with a large message in "
                    f"{ledger.pieces} pieces"
                )


def check_owner(found: LedgerMetadata, bulk_load: str, batch: int) -> None:
    """Refuse ledgers of other batches: only their own writer may commit or delete them."""
    custom = found.custom
    is_ours = (
        custom.get(rules.KIND_KEY) == rules.KIND
        and custom.get(rules.BULK_LOAD_KEY) == bulk_load.encode()
        and custom.get(rules.BATCH_KEY) == str(batch).encode()
        and rules.PARTITION_KEY in custom
    )
    if not is_ours:
        raise INVALID_BULK_LOAD(
            f"ledger {found.ledger_id} was not written for batch {batch} of {bulk_load}"
        )
