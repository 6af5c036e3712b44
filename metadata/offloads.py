"""Where a closed ledger lies: the changes of a partition's record that an offload makes.

    none → copying (uuid) → offloaded (uuid, object) → dropped

`copying` is set before the first byte is written and names who may finish: whoever begins a copy
anew takes the uuid's place, so of two only one can finish. `offloaded` comes after the object was
read back and compared. `dropped` says that only the object is left, and comes before the ledger is
deleted. A crash between any two leaves a state from which the next run goes on.

The owner of a partition changes its record too, by its own compare-and-set. Neither disturbs the
other: where closed ledgers lie, and the compacted view (compactions.py), are no business of the
owner's (`same_to_owner`), and each keeps what the other has set (`with_jobs_part_of`). All but
`change_partition` is pure.
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
    """The ledger is not what the caller believes: trimmed, or its copy is another's by now."""

    name = "offload-lost"


def is_readable(offload: OffloadRecord | None) -> bool:
    """Whether there is a whole copy."""
    return offload is not None and offload.state in (OFFLOADED, DROPPED)


def is_only_copy(offload: OffloadRecord | None) -> bool:
    """Whether the bookies' copies are given up."""
    return offload is not None and offload.state == DROPPED


# ---------------------------------------------------------------------- two who change one record


def owners_part(record: PartitionRecord) -> PartitionRecord:
    """What only the owner changes: the record as if no job had touched it."""
    links = tuple(replace(one, offload=None) for one in record.ledgers)
    return replace(record, ledgers=links, compaction=None)


def same_to_owner(one: PartitionRecord, other: PartitionRecord) -> bool:
    """Whether they differ in nothing but what jobs have set. The epoch tells owners apart."""
    return owners_part(one) == owners_part(other)


def with_jobs_part_of(record: PartitionRecord, newer: PartitionRecord) -> PartitionRecord:
    """`record`, its ledgers lying where `newer` says, with the compacted view of that one."""
    known = {link.ledger_id: link.offload for link in newer.ledgers}
    links = tuple(
        replace(link, offload=known.get(link.ledger_id, link.offload)) for link in record.ledgers
    )
    return replace(record, ledgers=links, compaction=newer.compaction)


# ---------------------------------------------------------------------- the steps, pure


def begun(record: PartitionRecord, ledger_id: int, offload: OffloadRecord) -> PartitionRecord:
    """Step 1: this copy may be made. Raises `OffloadLost`."""
    link = _link(record, ledger_id)
    if link.count is None:
        raise OffloadLost(f"ledger {ledger_id} is open: only closed ledgers are offloaded")
    if is_readable(link.offload):
        raise OffloadLost(f"ledger {ledger_id} is offloaded already")
    return _with(record, ledger_id, offload)


def finished(record: PartitionRecord, ledger_id: int, whole: OffloadRecord) -> PartitionRecord:
    """Step 2: the copy was read back and is whole. Raises `OffloadLost`."""
    found = _link(record, ledger_id).offload
    if found is not None and found.uuid == whole.uuid and is_readable(found):
        # Our own write, whose answer was lost; somebody may have dropped the ledger since.
        return record
    if found is None or found.uuid != whole.uuid or found.state != COPYING:
        raise OffloadLost(f"ledger {ledger_id}: somebody else has begun to copy it anew")
    return _with(record, ledger_id, replace(whole, state=OFFLOADED))


def given_up(record: PartitionRecord, ledger_id: int, uuid: str) -> PartitionRecord:
    """The copy failed; nothing is left of it. Raises `OffloadLost`."""
    found = _link(record, ledger_id).offload
    if found is None:
        return record
    if found.uuid != uuid or found.state != COPYING:
        raise OffloadLost(f"ledger {ledger_id}: its copy is another's by now")
    return _with(record, ledger_id, None)


def dropped(record: PartitionRecord, ledger_id: int, uuid: str, now_ms: int) -> PartitionRecord:
    """Step 3: from here on the copy is the only one; the ledger may go. Raises `OffloadLost`."""
    found = _link(record, ledger_id).offload
    if found is None or found.uuid != uuid or not is_readable(found):
        raise OffloadLost(f"ledger {ledger_id}: there is no whole copy {uuid}")
    if found.state == DROPPED:
        return record
    return _with(record, ledger_id, replace(found, state=DROPPED, since_ms=now_ms))


def _link(record: PartitionRecord, ledger_id: int) -> PartitionLedger:
    for link in record.ledgers:
        if link.ledger_id == ledger_id:
            return link
    raise OffloadLost(f"ledger {ledger_id} is no part of its partition any more")


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
    """Compare-and-set one of the steps of a job, each of which may be taken twice.

    Raises what `make` raises, `RecordNotFound` when the topic is gone, and `MetadataUnavailable`:
    it may then have taken place or not, and the next run finds out.
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
