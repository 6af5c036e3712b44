"""Wrap data keys of ledgers with the namespace's current key, and count the uses of each key.

Only the wrapped key in a record is changed, by compare-and-set. The run can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NamedTuple

from octavo.ledger.encryption import wrapped_of
from octavo.metadata.ledgers import LedgerMetadata, LedgerStore
from octavo.metadata.offloads import change_partition
from octavo.metadata.store import MetadataStore, RecordNotFound, VersionConflict
from octavo.metadata.topics import PartitionLedger, PartitionRecord, TopicStore
from octavo.security.keys.data_keys import DataKeys
from octavo.security.keys.wrapped import ENCRYPTION_KEY, Wrapped


class Use(NamedTuple):
    """A wrapped data key, stored in the record of `partition`; None: in the ledger's own record."""

    ledger_id: int
    wrapped: Wrapped
    partition: tuple[str, str, int] | None


class Rewrapped(NamedTuple):
    changed: int
    unchanged: int


async def uses(store: MetadataStore) -> AsyncIterator[Use]:
    ledgers, topics = LedgerStore(store), TopicStore(store)
    for ledger_id in await ledgers.list():
        try:
            metadata, _ = await ledgers.read(ledger_id)
        except RecordNotFound:
            continue
        if (wrapped := wrapped_of(metadata)) is not None:
            yield Use(ledger_id, wrapped, None)
    for namespace in await topics.list_namespaces():
        for topic in await topics.list_topics(namespace):
            for number in await topics.list_partitions(namespace, topic):
                try:
                    record, _ = await topics.read_partition(namespace, topic, number)
                except RecordNotFound:
                    continue
                for link in record.ledgers:
                    if (wrapped := _wrapped_in(link)) is not None:
                        yield Use(link.ledger_id, wrapped, (namespace, topic, number))


async def needed(store: MetadataStore) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    async for use in uses(store):
        found[use.wrapped.namespace, use.wrapped.key_id] += 1
    return found


async def rewrap(store: MetadataStore, keys: DataKeys, namespace: str | None) -> Rewrapped:
    """Wrap the data keys of `namespace`, or of all, with the namespace's current key.

    Raises `KeyMissing` if the key that wraps a data key is gone (its messages are lost),
    `KeySourceUnavailable`, `MetadataUnavailable`.
    """
    changed = unchanged = 0
    async for use in uses(store):
        if namespace is not None and use.wrapped.namespace != namespace:
            continue
        if await _rewrap(store, keys, use):
            changed += 1
        else:
            unchanged += 1
    return Rewrapped(changed, unchanged)


async def _rewrap(store: MetadataStore, keys: DataKeys, use: Use) -> bool:
    again = await keys.rewrapped(use.wrapped)
    if again is None:
        return False
    if use.partition is None:
        return await _change_ledger(LedgerStore(store), use, again)

    def make(record: PartitionRecord) -> PartitionRecord:
        links = tuple(_with(link, use, again) for link in record.ledgers)
        return replace(record, ledgers=links)

    try:
        await change_partition(TopicStore(store), use.partition, make)
    except RecordNotFound:
        return False
    return True


async def _change_ledger(ledgers: LedgerStore, use: Use, again: Wrapped) -> bool:
    while True:
        try:
            metadata, version = await ledgers.read(use.ledger_id)
            if wrapped_of(metadata) != use.wrapped:
                return False  # another run has wrapped it meanwhile
            await ledgers.write(_labelled(metadata, again), version)
            return True
        except VersionConflict:
            continue
        except RecordNotFound:
            return False


def _labelled(metadata: LedgerMetadata, again: Wrapped) -> LedgerMetadata:
    return replace(metadata, custom={**metadata.custom, ENCRYPTION_KEY: again.encode()})


def _wrapped_in(link: PartitionLedger) -> Wrapped | None:
    if link.offload is None or not link.offload.encryption:
        return None
    return Wrapped.decode(f"ledger {link.ledger_id}", link.offload.encryption.encode())


def _with(link: PartitionLedger, use: Use, again: Wrapped) -> PartitionLedger:
    if link.ledger_id != use.ledger_id or link.offload is None or _wrapped_in(link) != use.wrapped:
        return link
    return replace(link, offload=replace(link.offload, encryption=again.encode().decode()))
