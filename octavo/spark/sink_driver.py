"""The driver's side of the sink: check the target, commit, abort.

A task's message names the ledgers that it has written, or holds its rows. Depending on the option
`commit`, such rows are published (sink_producer.py) or written to ledgers here, one for each
partition, which join the tasks' ledgers in the commit. If the driver crashes, Spark repeats the
batch, and ledgers made here are orphans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from octavo.metadata.topics import TopicStore
from octavo.protocol.codes import OctavoError
from octavo.spark.options import InvalidOption
from octavo.spark.process_cache import ProcessCache
from octavo.spark.service import metadata_of, no_topic, settings_of
from octavo.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    from octavo.spark.sink_message import Written
    from octavo.spark.sink_rows import Rows, Target

_ATTEMPT = "driver"
_checked = ProcessCache[SinkOptions, bool](64)
"""The targets that this process has found to be there."""


class Batch(NamedTuple):
    """The messages of all tasks of a batch, in the order of the tasks."""

    bulk_load: str
    number: int
    written: list[Written]
    rows: Sequence[Mapping[Target, Rows]]


async def check_target(options: SinkOptions, *, once: bool = False) -> None:
    """Check the target before any task runs: a task's error is pages long. Raises `InvalidOption`.

    Topics named by rows are checked in the tasks. If the cluster does not answer now, the tasks
    find out whether it does by then. `once`: do nothing if this process has checked it before,
    because Spark makes a stream's writer anew twice for each micro-batch.
    """
    if options.topic is None or (once and _checked.get(options)):
        return
    try:
        async with metadata_of(options.service) as store:
            settings = await settings_of(TopicStore(store), options.topic)
    except OctavoError:
        return
    if settings is None:
        raise no_topic(options.topic)
    if options.partition is not None and options.partition >= settings.partitions:
        raise InvalidOption(
            f"option partition is {options.partition}; topic {options.topic} has partitions 0 to "
            f"{settings.partitions - 1}"
        )
    _checked.put(options, True)


async def commit(options: SinkOptions, batch: Batch) -> None:
    """Commit a batch. Raises `SinkFailed`, `NotSmall`, `InvalidOption`."""
    from octavo.spark import commit as calls  # slow to import, and a planner only checks

    service, timeout_ms = options.service, options.commit_timeout_ms
    written = batch.written
    if options.commit == "bulk-load":
        await calls.commit(service, batch.bulk_load, batch.number, written, timeout_ms)
        return
    from octavo.spark import sink_producer as producing

    shares = producing.together(batch.rows)
    if not written:
        why = producing.why_not_small(shares, options)
        odd = producing.odd_time(shares)
        if why is None and odd is None:
            producer = producing.producer_of(batch.bulk_load, batch.number)
            content = {
                target: (
                    producing.fingerprint(share.rows),
                    producing.record_batch(share, producer, options),
                )
                for target, share in shares.items()
            }
            await calls.publish(service, batch.bulk_load, batch.number, content, timeout_ms)
            return
        if options.commit == "producer":
            raise producing.not_small(why) if why is not None else producing.refused(odd)
    if shares:
        written = [*written, *await _to_ledgers(options, batch, shares)]
    await calls.commit(service, batch.bulk_load, batch.number, written, timeout_ms)


async def abort(options: SinkOptions, batch: Batch) -> None:
    """Give up a batch. Never raises."""
    from octavo.spark import commit as calls

    await calls.abort(
        options.service, batch.bulk_load, batch.number, batch.written, options.commit_timeout_ms
    )


async def _to_ledgers(
    options: SinkOptions, batch: Batch, shares: Mapping[Target, Rows]
) -> tuple[Written, ...]:
    from octavo.spark.cluster import connected
    from octavo.spark.sink_ledgers import TaskLedgers
    from octavo.spark.sink_rows import batches_of

    async with connected(options.service) as cluster:
        ledgers = TaskLedgers(cluster, batch.bulk_load, batch.number, _ATTEMPT)
        try:
            for target, share in shares.items():
                await ledgers.write([(target, one) for one in batches_of(share, options)])
            return await ledgers.close()
        except BaseException:
            await ledgers.discard()
            raise
