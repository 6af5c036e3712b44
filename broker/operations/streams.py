"""Run the operations on durable streams at the partition's owner.

An append of JSON is a message for each element of its array; any other append is a single message.
partition/stream.py says what a stored append promises, and what a crash leaves of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from octavo.broker.errors import (
    CONTENT_TYPE_MISSING,
    EMPTY_APPEND,
    INVALID_STREAM_JSON,
    NOTHING_TO_APPEND,
    STREAM_CONFLICT,
    STREAM_MESSAGE_TOO_LONG,
    TOO_MANY_MESSAGES,
    OffsetBeyondEnd,
    StreamClosed,
    StreamGone,
    StreamNotFound,
)
from octavo.broker.log.open_batches import OpenBatches
from octavo.broker.operations.given import given_of
from octavo.broker.operations.kinds import AnyAnswer, Awaited, Done
from octavo.broker.operations.stream_kinds import (
    AppendToStream,
    AwaitStream,
    DeleteStream,
    DescribeStream,
    MakeStream,
    Making,
    ReadStream,
    StreamAppended,
    StreamMade,
    StreamNow,
    StreamOperation,
    StreamPage,
    TooManyParts,
    json_values,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.state.stream import StreamConfig, StreamState, media_type
from octavo.broker.types import StoredBatch, TopicName
from octavo.protocol.limits import MESSAGE_BYTES_MAX
from octavo.protocol.records import RECORD_OVERHEAD_BYTES, Record
from octavo.security.principal import Identity

if TYPE_CHECKING:
    from octavo.broker.broker import Broker

BEGINNING = -1


class Charges(Protocol):
    def stored(self, topic: TopicName, size: int, messages: int) -> None: ...

    def published(self, size: int, messages: int) -> None: ...

    def given(self, topic: TopicName, batches: list[StoredBatch], messages: int) -> None: ...

    def bound_name(self, identity: Identity, producer: str) -> str: ...

    def message_bytes_max(self, topic: TopicName) -> int | None: ...


async def run(
    broker: Broker,
    partition: Partition,
    operation: StreamOperation,
    identity: Identity,
    rules: Charges,
) -> AnyAnswer:
    if isinstance(operation, AppendToStream):
        return await _append(broker, partition, operation, identity, rules)
    if isinstance(operation, ReadStream):
        return await _read(broker, partition, operation, rules)
    if isinstance(operation, AwaitStream):
        return await _await(partition, operation)
    if isinstance(operation, MakeStream):
        return await _make(broker, partition, operation, rules)
    if isinstance(operation, DescribeStream):
        state = await _standing(broker, partition, used=False)
        end = await end_of(partition, operation.least)
        return StreamNow(state.config, end, partition.stream.is_closed)
    assert isinstance(operation, DeleteStream)
    await _standing(broker, partition)
    if await broker.streams.has_forks(partition):
        await partition.stream.delete()
    else:
        await broker.streams.delete(partition.name.topic_name, partition.incarnation)
    return Done()


async def _standing(broker: Broker, partition: Partition, *, used: bool = True) -> StreamState:
    """Counts as a use; begins the deletion of an expired stream."""
    try:
        return partition.stream.standing(used=used)
    except (StreamNotFound, StreamGone):
        if broker.streams.is_due(partition):
            if partition.stream.is_over:
                broker.streams.begin(partition)
            elif await broker.streams.look(partition):
                topic = partition.name.topic_name
                raise StreamNotFound(f"{topic} was deleted, and so were its forks") from None
        raise


async def end_of(partition: Partition, least: int) -> int:
    """Return where the stream ends; before `least`, the owner proves that it has no successor."""
    if partition.stream.end < least:
        await partition.prove()
    return partition.stream.end


async def _make(
    broker: Broker, partition: Partition, operation: MakeStream, rules: Charges
) -> StreamMade:
    if await _is_over(broker, partition):
        return StreamMade(Making.OVER)
    stream, asked, plan = partition.stream, operation.asked, operation.plan
    if stream.is_made:
        state = stream.standing()
        await stream.make(asked.config(state.config), [], closed=asked.closed)
        return _made(partition, state, Making.THERE)
    if asked.fork is not None and plan is None:
        return StreamMade(Making.UNPLANNED)
    config = operation.config
    records = _records_of(partition, config, operation.body, rules)
    if plan is not None and plan.part:
        records.insert(0, Record(None, plan.part, (), partition.wall_ms()))
    base = 0 if plan is None else plan.base
    converts = stream.state is None and (partition.next_offset > base or not operation.is_new)
    if converts and not operation.may_convert:
        return StreamMade(Making.CONVERTS)
    made = await stream.make(config, records, closed=asked.closed, base=base)
    messages = _count_stored(partition, records, rules) if made else 0
    making = Making.MADE if made else Making.THERE
    return _made(partition, stream.standing(), making, messages)


async def _is_over(broker: Broker, partition: Partition) -> bool:
    state = partition.stream.state
    if state is None:
        return False
    if partition.stream.is_over:
        return True
    if not state.is_gone:
        return False
    if await broker.streams.has_forks(partition):
        topic = partition.name.topic_name
        raise STREAM_CONFLICT(f"{topic} was deleted, and its name is kept for its forks")
    return True


def _made(
    partition: Partition, state: StreamState, making: Making, messages: int = 0
) -> StreamMade:
    stream = partition.stream
    return StreamMade(making, state.config.content_type, stream.end, stream.is_closed, messages)


async def _append(
    broker: Broker,
    partition: Partition,
    operation: AppendToStream,
    identity: Identity,
    rules: Charges,
) -> StreamAppended:
    state, stream = await _standing(broker, partition), partition.stream
    append, topic = operation.append, partition.name.topic_name
    if append.producer is not None:
        append = append._replace(producer=rules.bound_name(identity, append.producer))
    if not operation.body:
        if not append.closes:
            raise EMPTY_APPEND("an append has a body, or Stream-Closed: true")
        return StreamAppended(*await stream.close(append), 0)
    if stream.is_closed and append.producer is None:
        raise StreamClosed(f"{topic} is closed", stream.end)
    _check_type(topic, operation.content_type, state.config)
    records = _records_of(partition, state.config, operation.body, rules)
    if not records:
        raise NOTHING_TO_APPEND("an empty array appends nothing")
    appended = await stream.append(records, append)
    messages = 0 if appended.repeated else _count_stored(partition, records, rules)
    return StreamAppended(*appended, messages)


def _check_type(topic: TopicName, given: str, config: StreamConfig) -> None:
    if not given:
        raise CONTENT_TYPE_MISSING(
            f"send the type of the data: Content-Type: {config.content_type}"
        )
    if media_type(given) != config.media_type:
        raise STREAM_CONFLICT(
            f"{topic} has the content type {config.content_type}, not {given[:80]}"
        )


def _records_of(
    partition: Partition, config: StreamConfig, body: bytes, rules: Charges
) -> list[Record]:
    if not body:
        return []
    values: list[bytes] | None = [body]
    if config.is_json:
        try:
            values = json_values(body)
        except TooManyParts as error:
            raise TOO_MANY_MESSAGES(f"{error}: append it in several calls") from None
        if values is None:
            raise INVALID_STREAM_JSON("the body is not JSON, and the stream's type is")
    assert values is not None
    most = rules.message_bytes_max(partition.name.topic_name) or MESSAGE_BYTES_MAX
    for value in values:
        if len(value) > most:
            raise STREAM_MESSAGE_TOO_LONG(
                f"a message has {len(value)} bytes, and may have {most}: append it in parts",
                bytes_max=most,
            )
    now_ms = partition.wall_ms()
    return [Record(None, value, (), now_ms) for value in values]


def _count_stored(partition: Partition, records: list[Record], rules: Charges) -> int:
    if records:
        size = sum(len(one.value or b"") + RECORD_OVERHEAD_BYTES for one in records)
        rules.stored(partition.name.topic_name, size, len(records))
        rules.published(size, len(records))
    return len(records)


async def _read(
    broker: Broker, partition: Partition, operation: ReadStream, rules: Charges
) -> StreamPage:
    state, stream = await _standing(broker, partition), partition.stream
    start = _start(partition, operation.at)
    if operation.wait_ms:
        await stream.wait(start, operation.wait_ms / 1000)
    before = b""
    if operation.look_back:
        before = await _before(broker.open_batches, partition, start, operation.look_back)
    batches = await _batches(partition, start, operation) if operation.count_max else []
    following = batches[-1].next_offset if batches else start
    if batches:
        rules.given(partition.name.topic_name, batches, following - start)
    is_all = following >= stream.end
    return StreamPage(
        state.config,
        partition.incarnation,
        given_of(batches),
        start,
        following,
        is_all,
        is_all and stream.is_closed,
        before,
    )


def _start(partition: Partition, at: int | None) -> int:
    if at is None:
        return partition.next_offset
    if at == BEGINNING:
        return partition.earliest_offset
    if at > partition.next_offset:
        topic = partition.name.topic_name
        raise OffsetBeyondEnd(f"{topic} ends before offset {at}", partition.next_offset)
    return at


async def _batches(partition: Partition, start: int, operation: ReadStream) -> list[StoredBatch]:
    room, most = operation.bytes_max, operation.count_max
    batches = await partition.read(start, bytes_max=room, count_max=most)
    while batches and (following := batches[-1].next_offset) < partition.next_offset:
        # A read ends with its ledger.
        left = room - sum(len(batch.data) for batch in batches)
        if left <= 0 or following - start >= most:
            break
        more = await partition.read(following, bytes_max=left, count_max=most)
        if sum(len(batch.data) for batch in more) > left:
            break
        batches += more
    return batches


async def _before(opener: OpenBatches, partition: Partition, start: int, size: int) -> bytes:
    at = max(partition.earliest_offset, start - size)
    found = b""
    while at < start:
        batches = await partition.read(at, bytes_max=1, count_max=start - at)
        if not batches:
            break
        for batch in batches:
            values = await values_of(opener, batch, at)
            found = (found + b"".join(values[: start - at]))[-size:]
            at = batch.next_offset
    return found


async def _await(partition: Partition, operation: AwaitStream) -> Awaited:
    stream = partition.stream
    await stream.wait(operation.offset, operation.wait_ms / 1000)
    return Awaited(stream.end > operation.offset or stream.is_closed)


async def values_of(opener: OpenBatches, batch: StoredBatch, start: int) -> list[bytes]:
    found: list[bytes] = []
    at = skip = max(0, start - batch.base_offset)
    async with opener.opened(batch) as windows:
        following = windows.following(at)
        while at < batch.header.record_count:
            await opener.turns.take(len(windows.span(at)))
            first, records = next(following)
            at = first + len(records)
            found += [one.value or b"" for one in records if one.offset_delta >= skip]
    return found
