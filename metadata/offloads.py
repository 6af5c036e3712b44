"""The place of a closed ledger: the changes that an offload makes to a partition's record.

    none → copying (uuid) → offloaded (uuid, object) → dropped

`copying` is set before the first byte and names the copy: another replaces its uuid, so only one
can finish. `offloaded` is set after the object was read back, `dropped` before the ledger is
deleted. After a crash the next run continues.

Jobs set the places of closed ledgers and the compacted view, which the partition's owner ignores
(`same_to_owner`) and keeps (`with_jobs_part_of`). All functions except `change_partition` are pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from octavo.metadata.store import MetadataUnavailable, SessionExpired, VersionConflict
from octavo.metadata.topics import OffloadRecord, PartitionLedger, PartitionRecord, TopicStore
from octavo.protocol.codes import OctavoError

COPYING, OFFLOADED, DROPPED = "copying", "offloaded", "dropped"
_PAUSE_S = 0.1


class OffloadLost(OctavoError):
    """The ledger was trimmed, or another process copies it."""

    name = "offload-lost"


def is_readable(offload: OffloadRecord | None) -> bool:
    """Whether there is a complete copy."""
    return offload is not None and offload.state in (OFFLOADED, DROPPED)


def is_only_copy(offload: OffloadRecord | None) -> bool:
    """Whether the bookies' copies are given up."""
    return offload is not None and offload.state == DROPPED


# ---------------------------------------------------------------------- owner and jobs


def owners_part(record: PartitionRecord) -> PartitionRecord:
    """Return the record without the changes of jobs."""
    links = tuple(replace(one, offload=None) for one in record.ledgers)
    return replace(record, ledgers=links, compaction=None)


def same_to_owner(one: PartitionRecord, other: PartitionRecord) -> bool:
    """Whether they differ at most in what jobs have set."""
    return owners_part(one) == owners_part(other)


def with_jobs_part_of(record: PartitionRecord, newer: PartitionRecord) -> PartitionRecord:
    """Return the record with `newer`'s places of ledgers and compacted view."""
    known = {link.ledger_id: link.offload for link in newer.ledgers}
    links = tuple(
        replace(link, offload=known.get(link.ledger_id, link.offload)) for link in record.ledgers
    )
    return replace(record, ledgers=links, compaction=newer.compaction)


# ---------------------------------------------------------------------- the steps, pure


def begun(record: PartitionRecord, ledger_id: int, offload: OffloadRecord) -> PartitionRecord:
    """Step 1: allow this copy to be made."""
    link = _link(record, ledger_id)
    if link.count is None:
        raise OffloadLost(f"ledger {ledger_id} is open: only closed ledgers are offloaded")
    if is_readable(link.offload):
        raise OffloadLost(f"ledger {ledger_id} is offloaded already")
    return _with(record, ledger_id, offload)


def finished(record: PartitionRecord, ledger_id: int, whole: OffloadRecord) -> PartitionRecord:
    """Step 2: the copy was read back and is complete."""
    found = _link(record, ledger_id).offload
    if found is not None and found.uuid == whole.uuid and is_readable(found):
        # Our own write with a lost answer; it may have been dropped since.
        return record
    if found is None or found.uuid != whole.uuid or found.state != COPYING:
        raise OffloadLost(f"ledger {ledger_id}: another process has begun to copy it again")
    return _with(record, ledger_id, replace(whole, state=OFFLOADED))


def given_up(record: PartitionRecord, ledger_id: int, uuid: str) -> PartitionRecord:
    """Undo step 1: nothing is left of the copy."""
    found = _link(record, ledger_id).offload
    if found is None:
        return record
    if found.uuid != uuid or found.state != COPYING:
        raise OffloadLost(f"ledger {ledger_id}: its copy belongs to another process now")
    return _with(record, ledger_id, None)


def dropped(record: PartitionRecord, ledger_id: int, uuid: str, now_ms: int) -> PartitionRecord:
    """Step 3: the object is the only copy; the ledger may be deleted."""
    found = _link(record, ledger_id).offload
    if found is None or found.uuid != uuid or not is_readable(found):
        raise OffloadLost(f"ledger {ledger_id}: there is no complete copy {uuid}")
    if found.state == DROPPED:
        return record
    return _with(record, ledger_id, replace(found, state=DROPPED, since_ms=now_ms))


def _link(record: PartitionRecord, ledger_id: int) -> PartitionLedger:
    for link in record.ledgers:
        if link.ledger_id == ledger_id:
            return link
    raise OffloadLost(f"ledger {ledger_id} does not belong to its partition any more")


def _with(record: PartitionRecord, ledger_id: int, to: OffloadRecord | None) -> PartitionRecord:
    links = tuple(
        replace(link, offload=to) if link.ledger_id == ledger_id else link
        for link in record.ledgers
    )
    return replace(record, ledgers=links)


# ---------------------------------------------------------------------- the record


async def change_partition(
    topics: TopicStore,
    name: tuple[str, str, int],
    make: Callable[[PartitionRecord], PartitionRecord],
    *,
    timeout_s: float = 30.0,
) -> PartitionRecord:
    """Compare and set a step of a job; each step may be made twice.

    After `MetadataUnavailable` it may have been made.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    topic, _ = await topics.read_topic(*name[:2])
                    record, version = await topics.read_partition(*name)
                    wanted = make(record)
                    if wanted != record:
                        await topics.write_partition(*name, wanted, version, guard=topic.guard)
                    return wanted
                except VersionConflict:
                    continue
                except (MetadataUnavailable, SessionExpired):
                    await asyncio.sleep(_PAUSE_S)
    except TimeoutError as error:
        raise MetadataUnavailable(
            f"the record of {'/'.join(map(str, name))} could not be changed in {timeout_s:g} s"
        ) from error
