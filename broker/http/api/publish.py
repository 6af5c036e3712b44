"""Publish: read the request, choose its partition, and write the answer.

The head is checked before the body is read, and unknown input is refused. A request for a topic
with several partitions is split here (batching.py), and each partition's share goes to its owner.
The status is 2xx only when all messages are durable; if something fails, the answer says what had
been stored before.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from aiohttp import web
from msgspec import UNSET

from octavo.broker.errors import InvalidTimestamp, MessageTooLong, UnsupportedBatch
from octavo.broker.http.api import answers
from octavo.broker.http.api.access import LAST_EPOCH
from octavo.broker.http.api.batching import (
    ACCESS_HEADER,
    NOT_SENT,
    Piece,
    Producer,
    Publishing,
    size_of,
)
from octavo.broker.http.api.payloads import (
    decode_message,
    decode_messages,
    has_several,
    messages_in,
    raw_record,
    record_of,
)
from octavo.broker.http.api.topics import topic_to_publish
from octavo.broker.http.call import JSON, NDJSON, NEXT_OFFSET_HEADER, RECORD_BATCH, Call, whole_hint
from octavo.broker.http.forwarding import note_owner, redirected, with_owner
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.http.services import Services
from octavo.broker.operations.local import publish_all, publish_single
from octavo.broker.partition.message_batcher import Placed
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Owner, PartitionName, Published, TopicName
from octavo.protocol.batch import (
    NO_PRODUCER,
    BatchHeader,
    InvalidBatch,
    check_batch,
    split_batches,
)
from octavo.protocol.limits import json_line_bytes_max
from octavo.protocol.numbers import producer_number, whole
from octavo.protocol.records import Record, build_batch, partition_for

BLANK_LINES_MAX = 10_000
BATCHES_MAX = 10_000
ONE_TURN_BYTES = 64 * 1024
"""A longer body with several messages takes several turns of the loop."""
TURN_MESSAGES = 1000
Found = TypeVar("Found")
_UNDERSTOOD_TYPES = (
    f"{JSON}, {NDJSON}, {RECORD_BATCH}, or any other type but multipart/* for one raw message"
)
_REFUSED_TYPES = re.compile(r"multipart/.*|application/vnd\.kafka\..*|application/json-seq")
_PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")


async def publish(call: Call) -> web.StreamResponse:
    _check_content_type(call)
    topic = call.topic
    info = await topic_to_publish(call)
    partitions = info.settings.partitions
    name = call.partition
    if name is None and partitions == 1:
        name = topic.partition(0)
    if name is None:
        return await _publish_spread(call, topic, partitions)
    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    if call.content_type == RECORD_BATCH and "results" not in call.query:
        body = await call.read_body()
        header = check_batch(body)
        if header.total_bytes == len(body):
            return await _publish_one_batch(call, name, body, header)
    elif (record := await _single(call)) is not None:
        return await _publish_single(call, name, record)
    return await _publish_into(call, topic, partitions, name.partition)


async def _publish_one_batch(
    call: Call, name: PartitionName, body: bytes, header: BatchHeader
) -> web.StreamResponse:
    _refuse_producer_headers(call)
    await _check_batch(call, body, header, body)
    count, expected, access = header.record_count, _expected_offset(call), access_of(call)

    async def here(partition: Partition) -> Published:
        (published,) = await publish_all(
            partition, name.topic_name, [body], [count], [expected], access, call.identity,
            call.services.rules, checked=True,
        )  # fmt: skip
        if isinstance(published, BaseException):
            raise published
        return published

    async def there(owner: Owner) -> Published:
        stored = await call.services.remote.publish(
            owner, call.identity, name, [body], expected_offset=expected, access=access
        )
        published = stored.fates[0].published
        assert published is not None
        return published

    piece = Piece(name.partition, 0)
    piece.last = count - 1
    piece.count = count
    piece.published = await with_owner(call, name, here, there)
    call.messages = count
    return _answer(call, [piece], None)


async def _single(call: Call) -> Record | None:
    if not may_be_single(call):
        return None
    services, kind = call.services, call.content_type
    bytes_max = None if kind == JSON else services.config.line_bytes_max
    try:
        body = await call.read_body(bytes_max)
        return single_record(kind, call.headers, body, services, call.topic)
    except Problem as problem:
        raise _with_stored(problem, []) from None


def may_be_single(call: Call) -> bool:
    headers = call.headers
    return not (
        call.content_type in (RECORD_BATCH, NDJSON)
        or "results" in call.query
        or "If-Match" in headers
        or ACCESS_HEADER in headers
        or any(name in headers for name in _PRODUCER_HEADERS)
    )


def single_record(
    kind: str,
    headers: Mapping[str, str],
    body: bytes,
    services: Services,
    topic: TopicName,
    key: bytes | None = None,
) -> Record | None:
    """Return a single message; None when the body has several."""
    now_ms = services.clock()
    if kind == JSON:
        if len(body) > ONE_TURN_BYTES and has_several(body):
            return None
        messages = decode_messages(body)
        if len(messages) != 1:
            return None
        record = record_of(messages[0], now_ms)
    else:
        record = raw_record(body, headers, now_ms)
        if key is not None:
            record = record._replace(key=key)
    size_of(record, services.rules.single_bytes_max(topic))
    return record


def partition_of_single(record: Record, partitions: int, turn: int) -> int:
    return turn % partitions if record.key is None else partition_for(record.key, partitions)


def single_answer(number: int, placed: Placed) -> answers.Published:
    piece = Piece(number, 0)
    piece.index = placed.number
    piece.published = placed.published
    at = piece.place(0)
    return answers.Published(1, at, at)


async def _publish_single(call: Call, name: PartitionName, record: Record) -> web.StreamResponse:
    async def here(partition: Partition) -> Placed:
        return await publish_single(partition, name.topic_name, record, call.services.rules)

    async def there(owner: Owner) -> Placed:
        batch = build_batch([record])
        stored = await call.services.remote.publish(
            owner, call.identity, name, [batch], is_single=True
        )
        fate = stored.fates[0]
        assert fate.published is not None
        return Placed(fate.published, fate.number, len(batch))

    placed = await with_owner(call, name, here, there)
    call.messages = 1
    return call.reply(single_answer(name.partition, placed))


async def _publish_into(
    call: Call, topic: TopicName, partitions: int, only: int
) -> web.StreamResponse:
    producer = None
    if call.content_type == RECORD_BATCH:
        _refuse_producer_headers(call)
    else:
        producer = _producer_of(call)
    publishing = Publishing(
        call,
        topic,
        partitions,
        only=only,
        producer=producer,
        expected_offset=_expected_offset(call),
        access=access_of(call),
        keep_places=_wants_places(call),
    )
    answer = await _feed_and_answer(call, publishing)
    if not publishing.pieces:
        await note_owner(call, topic.partition(only))
    return answer


async def _publish_spread(call: Call, topic: TopicName, partitions: int) -> web.StreamResponse:
    kind = call.content_type
    if kind == RECORD_BATCH:
        raise _partition_required(topic, partitions, "a record batch is stored as it is, whole")
    bound_to_one = (
        _producer_of(call) is not None
        or _expected_offset(call) is not None
        or access_of(call) is not None
    )
    if bound_to_one:
        if kind == NDJSON:
            raise _partition_required(
                topic, partitions, "Producer-Seq, If-Match and exclusive access are for one "
                                "partition, and NDJSON may have many keys"
            )  # fmt: skip
        number = await _one_partition(call, topic, partitions)
        if (elsewhere := await redirected(call, topic.partition(number))) is not None:
            return elsewhere
        return await _publish_into(call, topic, partitions, number)
    record = await _single(call)
    if record is None:
        publishing = Publishing(call, topic, partitions, keep_places=_wants_places(call))
        return await _feed_and_answer(call, publishing)
    number = partition_of_single(record, partitions, next(call.services.turn))
    return await _publish_single(call, topic.partition(number), record)


async def _one_partition(call: Call, topic: TopicName, partitions: int) -> int:
    body = await call.read_body()
    if call.content_type == JSON:
        records = await _in_turns(call, (record_of(one, 0) for one in messages_in(body)))
    else:
        records = [raw_record(body, call.headers, 0)]
    numbers = {None if r.key is None else partition_for(r.key, partitions) for r in records}
    if len(numbers) != 1 or None in numbers:
        raise _partition_required(
            topic, partitions, "Producer-Seq and If-Match count in one partition, and the keys of "
            "this body do not name one"
        )  # fmt: skip
    number = numbers.pop()
    assert number is not None
    return number


def _check_content_type(call: Call) -> None:
    kind = call.content_type
    if kind != RECORD_BATCH and _REFUSED_TYPES.fullmatch(kind):
        raise Problem(
            415,
            "unsupported-media-type",
            f"{kind} is not understood here; understood are {_UNDERSTOOD_TYPES}",
            headers={"Accept": f"{JSON}, {NDJSON}, {RECORD_BATCH}, */*;q=0.1"},
        )


def _producer_of(call: Call) -> Producer | None:
    values = [call.headers.get(name) for name in _PRODUCER_HEADERS]
    if all(value is None for value in values):
        return None
    missing = [n for n, value in zip(_PRODUCER_HEADERS, values, strict=True) if value is None]
    if missing:
        raise Problem(
            400,
            "incomplete-producer",
            f"{', '.join(_PRODUCER_HEADERS)} are given together or not at all; missing: "
            + ", ".join(missing),
        )
    name, epoch, sequence = (value or "" for value in values)
    if not name:
        raise _bad_header("Producer-Id", name, "a number or a name")
    return Producer(
        producer_number(name),
        _header_number("Producer-Epoch", epoch, 2**15 - 1),
        _header_number("Producer-Seq", sequence, 2**31 - 1),
    )


def _header_number(name: str, text: str, most: int) -> int:
    found = whole(text, most)
    if found is None:
        raise _bad_header(name, text, whole_hint(0, most))
    return found


def _bad_header(name: str, text: str, expected: str) -> Problem:
    return Problem(400, "invalid-header", f"{name} is {text[:40]!r}; it must be {expected}")


def _refuse_producer_headers(call: Call) -> None:
    """Refuse producer headers with a record batch, which names its producer."""
    headers = call.headers
    if any(name in headers for name in _PRODUCER_HEADERS):
        raise Problem(
            422,
            "producer-in-batch",
            "a record batch has its producer id, epoch and sequence in its own header and is "
            f"stored as sent (no producer: id {NO_PRODUCER}); omit the Producer-* headers",
        )


def access_of(call: Call) -> int | None:
    text = call.headers.get(ACCESS_HEADER)
    return None if text is None else _header_number(ACCESS_HEADER, text, LAST_EPOCH)


def _expected_offset(call: Call) -> int | None:
    text = call.headers.get("If-Match")
    if text is None:
        return None
    is_quoted = len(text) > 2 and text[0] == text[-1] == '"'
    found = whole(text[1:-1] if is_quoted else text)
    if found is None:
        raise _bad_header("If-Match", text, 'the next offset in quotes, such as "42"')
    return found


def _wants_places(call: Call) -> bool:
    return call.choice("results", "summary", "summary", "all", "batches") == "all"


def _partition_required(topic: TopicName, partitions: int, why: str) -> Problem:
    return Problem(
        422,
        "partition-required",
        f"{topic} has {partitions} partitions, and {why}: name one in the path, as in "
        f"/v1/topics/{topic}/partitions/0/messages",
        extra={"partitions": partitions},
    )


async def _feed_and_answer(call: Call, publishing: Publishing) -> web.StreamResponse:
    feed = {JSON: _feed_json, NDJSON: _feed_ndjson, RECORD_BATCH: _feed_batches}
    try:
        await feed.get(call.content_type, _feed_raw)(call, publishing)
        await publishing.finish()
    except Problem as problem:
        await publishing.finish()
        raise _with_stored(problem, publishing.pieces) from None
    except InvalidBatch as error:
        await publishing.finish()
        raise _with_stored(problem_of(error), publishing.pieces) from None
    finally:
        await publishing.abandon()
    return _answer(call, publishing.pieces, publishing.places)


async def _feed_raw(call: Call, publishing: Publishing) -> None:
    body = await call.read_body(call.services.config.line_bytes_max)
    publishing.add(raw_record(body, call.headers, call.services.clock()))


async def _feed_json(call: Call, publishing: Publishing) -> None:
    messages = await _in_turns(call, messages_in(await call.read_body()))
    now_ms = call.services.clock()
    records = []
    for index, message in enumerate(messages):  # all are checked before the first is stored
        try:
            records.append(record_of(message, now_ms))
            publishing.size_of(records[-1])
        except Problem as problem:
            if len(messages) > 1:
                problem.extra["index"] = index
                problem.detail = f"messages[{index}]: {problem.detail}; nothing was stored"
            raise
        if not index % TURN_MESSAGES:
            await asyncio.sleep(0)
    for index, record in enumerate(records):
        publishing.add(record)
        if not index % TURN_MESSAGES:
            await publishing.room()
            await asyncio.sleep(0)


async def _in_turns(call: Call, found: Iterator[Found]) -> list[Found]:
    turns, every = call.services.broker.open_batches.turns, list[Found]()
    for one in found:
        every.append(one)
        await turns.take(1)
    return every


async def _feed_batches(call: Call, publishing: Publishing) -> None:
    body = await call.read_body()
    # All are checked before the first is stored.
    batches = await _in_turns(call, itertools.islice(split_batches(body), BATCHES_MAX + 1))
    if len(batches) > BATCHES_MAX:
        raise Problem(
            422,
            "too-many-batches",
            f"the body has more than {BATCHES_MAX} record batches: put more messages into each",
        )
    if not batches:
        raise Problem(422, "no-messages", "the body is empty: there is nothing to publish")
    turns, whole = call.services.broker.open_batches.turns, []
    for number, (header, view) in enumerate(batches, 1):
        await turns.take(1)
        batch = bytes(view)
        try:
            await _check_batch(call, body, header, batch)
        except InvalidBatch as error:
            if len(batches) == 1:
                raise
            raise InvalidBatch(f"batch {number} of {len(batches)}: {error}") from error
        whole.append((header, batch))
    for header, batch in whole:
        await turns.take(1)
        publishing.add_batch(batch, header.record_count)


async def _check_batch(call: Call, body: bytes, header: BatchHeader, batch: bytes) -> None:
    async def hold(size: int) -> None:
        await call.hold(len(body) + size)

    rules = call.services.rules
    try:
        await rules.check_batch(call.topic, header, batch, call.peer, hold)
    except (UnsupportedBatch, InvalidTimestamp, MessageTooLong) as error:
        raise problem_of(error) from error  # the answer says what of the body was stored


async def _feed_ndjson(call: Call, publishing: Publishing) -> None:
    line_bytes_max = json_line_bytes_max(call.services.config.line_bytes_max)
    rest = b""
    line_number = 0
    async for chunk in call.stream_body(idle_ms=call.services.config.stream_idle_ms):
        if not chunk:
            publishing.flush()
            continue
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest += tail
        else:
            lines = (rest + head).split(b"\n")
            rest = tail
            for start in range(0, len(lines), TURN_MESSAGES):
                some = lines[start : start + TURN_MESSAGES]
                line_number = _take_lines(call, publishing, some, line_number)
                if line_number - publishing.count > BLANK_LINES_MAX:
                    raise Problem(
                        422,
                        "too-many-blank-lines",
                        f"more than {BLANK_LINES_MAX} of the first {line_number} lines are empty; "
                        "the messages between them were published",
                        headers={"Connection": "close"},
                    )
                await asyncio.sleep(0)
        if len(rest) > line_bytes_max:
            raise Problem(
                413,
                "message-too-long",
                f"line {line_number + 1} is longer than {line_bytes_max} bytes",
                extra={"line": line_number + 1, "bytes_max": line_bytes_max},
                headers={"Connection": "close"},
            )
        if publishing.failed:
            return
        await publishing.room()
        await call.hold(len(rest) + publishing.held_bytes)
    if rest:
        line_number = _take_lines(call, publishing, [rest], line_number)
    if not line_number:
        raise Problem(422, "no-messages", "the body is empty: there is nothing to publish")


def _take_lines(call: Call, publishing: Publishing, lines: list[bytes], number: int) -> int:
    now_ms = call.services.clock()
    add = publishing.add
    for line in lines:
        number += 1
        try:
            if line and not line.isspace():
                add(record_of(decode_message(line), now_ms))
        except Problem as problem:
            problem.extra["line"] = number
            problem.detail = (
                f"line {number}: {problem.detail}. The lines before it were published, this one "
                "and those after it were not"
            )
            raise
    return number


def _answer(
    call: Call, pieces: list[Piece], places: list[tuple[Piece, int]] | None
) -> web.StreamResponse:
    failed = [piece for piece in pieces if piece.published is None]
    if failed and len(failed) == len(pieces):
        causes = (piece.error for piece in failed if piece.error not in (None, NOT_SENT))
        raise next(causes, None) or NOT_SENT
    summary = summarize(pieces)
    if places is not None:
        summary.results = [_result(piece, index) for piece, index in places]
    if call.text("results") == "batches" and call.content_type == RECORD_BATCH:
        summary.batches = [_batch(piece) for piece in pieces if piece.published is not None]
    if failed:
        summary.not_confirmed = sum(piece.count for piece in failed)
        summary.errors = cast(list[answers.PartError], _errors(failed))
        return call.reply(summary, status=207)
    if summary.duplicates == summary.count and summary.batches is UNSET:
        last = max(pieces, key=lambda piece: piece.last).place(pieces[-1].count - 1).offset
        following = {} if last is UNSET else {NEXT_OFFSET_HEADER: str(last + 1)}
        return web.Response(status=204, headers=following)
    return call.reply(summary)


def summarize(pieces: list[Piece]) -> answers.Published:
    stored = [piece for piece in pieces if piece.published is not None]
    found = answers.Published(sum(piece.count for piece in stored))
    if not stored:
        return found
    first = min(stored, key=lambda piece: piece.first)
    last = max(stored, key=lambda piece: piece.last)
    found.first = first.place(0)
    found.last = last.place(last.count - 1)
    duplicates = sum(p.count for p in stored if p.published is not None and p.published.duplicate)
    if duplicates:
        found.duplicates = duplicates
    several = sorted({piece.partition for piece in stored})
    if len(several) > 1:
        found.partitions = [
            _share([piece for piece in stored if piece.partition == number]) for number in several
        ]
    return found


def _errors(failed: list[Piece]) -> list[dict[str, Any]]:
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for piece in failed:
        if piece.error is not None:
            key = (piece.partition, piece.error.code)
            if key not in found:
                found[key] = {**piece.error.body(), "partition": piece.partition, "count": 0}
            found[key]["count"] += piece.count
    return list(found.values())


def _share(pieces: list[Piece]) -> answers.Share:
    count = sum(piece.count for piece in pieces)
    last = pieces[-1].place(pieces[-1].count - 1)
    return answers.Share(pieces[0].partition, count, pieces[0].place(0), last)


def _result(piece: Piece, index: int) -> answers.Result:
    if piece.published is not None:
        at = piece.place(index)
        return answers.Result(200, at.partition, at.offset, at.id, piece.published.duplicate)
    error = piece.error
    assert error is not None
    return answers.Result(
        error.status,
        piece.partition,
        code=error.code,
        detail=error.detail,
        retryable=error.can_retry,
    )


def _batch(piece: Piece) -> answers.StoredBatchAt:
    assert piece.published is not None
    first, _, ledger_id, entry_id, _, duplicate = piece.published
    return answers.StoredBatchAt(piece.count, first, f"{ledger_id}:{entry_id}:0", duplicate)


def _with_stored(problem: Problem, pieces: list[Piece]) -> Problem:
    problem.extra["stored"] = summarize(pieces)
    if errors := _errors(pieces):
        problem.extra["errors"] = errors
    return problem
