"""Bulk loads over HTTP: commit and abort at any broker, insert a part at its owner.

The rules are in bulkload/rules.py. Every call here may be repeated unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec
from aiohttp import web

from octavo.broker.bulkload import driver
from octavo.broker.bulkload.driver import CheckTaken, Committed, Offer
from octavo.broker.bulkload.rules import Caller, digest_of
from octavo.broker.config import MIB
from octavo.broker.errors import (
    BULK_LOAD_NOT_FOUND,
    OTHER_CLUSTER,
    PartitionNotFound,
    TopicIsStream,
    TopicNotFound,
)
from octavo.broker.http.api.answers import (
    BulkLoad,
    BulkLoadShare,
    BulkLoadTurn,
)
from octavo.broker.http.call import OFFSET_MAX, Call, bad_parameter, whole_hint
from octavo.broker.http.forwarding import operate
from octavo.broker.http.problems import Problem
from octavo.broker.internal_topics import check_not_internal
from octavo.broker.operations.kinds import DescribePartition, Loaded, LoadPart
from octavo.broker.types import PartitionName, PartitionStats, TopicName, checked_name
from octavo.metadata.bulk_loads import BulkLoadRecord, PrivateLedger
from octavo.protocol.numbers import whole
from octavo.security.rules import Kind, Operation, Resource

TOKEN_HEADER = "Bulk-Load-Token"
CLUSTER_HEADER = "Bulk-Load-Cluster"
TOKEN_BYTES_MAX = 200
CONTENT_CHARS_MAX = 100
SHARES_MAX = 1_000
"""Bounds a record, which ZooKeeper limits to 1 MB."""
ABORTED_LEDGERS_MAX = 10_000
"""A writer with more ledgers calls again."""
LEDGERS_MAX = 4_000
"""The bound of a call's ledgers, and of a partition that gets bulk loads."""
PARTS_MAX = 4_000
"""Each partition has at least one ledger."""
_RECORDS_OF_A_PART = 3
COMMIT_BYTES_MAX, BEGIN_BYTES_MAX, ABORT_BYTES_MAX = 2 * MIB, MIB, MIB // 2
Number = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX, extra_json_schema={"format": "int64"})]
After = Annotated[
    int,
    msgspec.Meta(
        ge=-1,
        le=OFFSET_MAX,
        description="the previous batch, if numbers have gaps or the id may be new",
    ),
]
Stamp = Annotated[int, msgspec.Meta(ge=-OFFSET_MAX, le=OFFSET_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_GONE = {"topic-not-found": TopicNotFound, "partition-not-found": PartitionNotFound}


def _target(text: str) -> TopicName:
    name = TopicName.parse(text)
    check_not_internal(name)
    return name


class LedgerBody(msgspec.Struct, forbid_unknown_fields=True):
    """One private ledger."""

    schema_name: ClassVar = "PrivateLedger"

    id: Number
    messages: Annotated[int, msgspec.Meta(ge=1, le=OFFSET_MAX)]
    bytes: Number
    first_ms: Annotated[Stamp, msgspec.Meta(description="the oldest timestamp in it")]
    last_ms: Annotated[Stamp, msgspec.Meta(description="the newest")]
    disorder_ms: Annotated[
        Stamp,
        msgspec.Meta(
            description="no batch's newest timestamp is lower than an earlier one by more; "
            "-1, the default: not known"
        ),
    ] = -1
    pieces: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=OFFSET_MAX)] | None,
        msgspec.Meta(description="for a large message: the number of its pieces"),
    ] = None

    def ledger(self) -> PrivateLedger:
        return PrivateLedger(
            self.id, self.messages, self.bytes, self.first_ms, self.last_ms, self.disorder_ms,
            self.pieces,
        )  # fmt: skip


class PartBody(msgspec.Struct, forbid_unknown_fields=True):
    """The ledgers for one partition."""

    schema_name: ClassVar = "BulkLoadPart"

    topic: str
    partition: PartitionNumber
    ledgers: Annotated[list[LedgerBody], msgspec.Meta(max_length=LEDGERS_MAX)]

    def offer(self) -> Offer:
        name = _target(self.topic).partition(self.partition)
        return Offer(name, tuple(one.ledger() for one in self.ledgers))


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    """`published`: the writer has published the batch. `after`: the batch before, if numbers have
    gaps.
    """

    schema_name: ClassVar = "BulkLoadParts"

    parts: Annotated[list[PartBody], msgspec.Meta(max_length=PARTS_MAX)]
    published: Annotated[
        bool, msgspec.Meta(description="the caller has begun and published it")
    ] = False
    after: After | None = None


class ShareBody(msgspec.Struct, forbid_unknown_fields=True):
    """The share of a partition that the writer will publish; `content` describes it in the writer's
    words."""

    topic: str
    partition: PartitionNumber
    content: Annotated[
        str,
        msgspec.Meta(
            max_length=CONTENT_CHARS_MAX,
            description="any text; a repeat must have the same",
        ),
    ]


class BeginBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a begin. `after`: as in a commit."""

    schema_name: ClassVar = "PublishedParts"

    parts: Annotated[list[ShareBody], msgspec.Meta(max_length=SHARES_MAX)]
    after: After | None = None


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an abort."""

    schema_name: ClassVar = "GivenUp"

    ledgers: Annotated[list[Number], msgspec.Meta(max_length=ABORTED_LEDGERS_MAX)]


async def get_bulk_load(call: Call) -> web.StreamResponse:
    name = _bulk_load(call)
    record = await call.services.broker.bulk_loads.newest(name)
    if record.batch < 0:
        raise BULK_LOAD_NOT_FOUND(f"no batch of bulk load {name} was committed")
    return call.reply(show(name, record, {}))


async def commit(call: Call) -> web.StreamResponse:
    name, batch = _bulk_load(call), _batch(call)
    body = await call.read_json(CommitBody, bytes_max=COMMIT_BYTES_MAX)
    if body.published and body.parts:
        raise Problem(422, "invalid-body", "a published batch has no ledgers: parts must be empty")
    turns, offers = call.services.broker.open_batches.turns, list[Offer]()
    for part in body.parts:
        await turns.take(_RECORDS_OF_A_PART)
        offers.append(part.offer())
    await _check(call, [one.name for one in offers])
    quotas = call.services.quotas
    namespaces = dict.fromkeys(one.name.namespace for one in offers)
    quotas.may_load(call.identity.name, namespaces)
    done = await call.services.broker.bulk_loads.commit(
        name,
        batch,
        offers,
        _loading(call),
        published=body.published,
        caller=await _caller(call, batch, body.after),
        check_taken=_checking(call),
    )
    if not done.repeated:
        for offer in offers:
            size = sum(one.bytes for one in offer.ledgers)
            messages = sum(one.count for one in offer.ledgers)
            quotas.loaded(call.identity.name, offer.name.namespace, size, messages)
    return call.reply(committed(name, done))


async def begin(call: Call) -> web.StreamResponse:
    name, batch = _bulk_load(call), _batch(call)
    body = await call.read_json(BeginBody, bytes_max=BEGIN_BYTES_MAX)
    content = {_target(one.topic).partition(one.partition): one.content for one in body.parts}
    if len(content) < len(body.parts):
        raise Problem(422, "invalid-body", "a partition is named twice in the batch")
    await _check(call, content)
    caller = await _caller(call, batch, body.after)
    is_new = await call.services.broker.bulk_loads.begin(
        name, batch, content, _loading(call), caller, _checking(call)
    )
    return call.reply(BulkLoadTurn(name, batch, repeated=not is_new))


async def _check(call: Call, names: Iterable[PartitionName]) -> None:
    turns = call.services.broker.open_batches.turns
    for topic in dict.fromkeys(name.topic_name for name in names):
        await turns.take(_RECORDS_OF_A_PART)
        call.check(Operation.PRODUCE, Resource(Kind.TOPIC, str(topic)))


def _checking(call: Call) -> CheckTaken:
    async def check(partition: PartitionName) -> None:
        own = call.services.own_identity
        stats = await operate(
            call, DescribePartition(partition), PartitionStats, is_part=True, identity=own
        )
        if stats.stream:
            raise TopicIsStream(
                f"{partition.topic_name} is a durable stream, which takes only appends: "
                "load into another topic; nothing of the batch is committed"
            )

    return check


def _loading(call: Call) -> driver.LoadPart:
    async def load_part(partition: PartitionName, bulk_load: str, number: int) -> int | None:
        # A batch may have thousands of parts.
        await call.services.broker.open_batches.turns.take(_RECORDS_OF_A_PART)
        operation = LoadPart(partition, bulk_load, number)
        own = call.services.own_identity
        try:
            found = await operate(call, operation, Loaded, is_part=True, identity=own)
        except Problem as error:
            raise _GONE[error.code](error.detail) if error.code in _GONE else error from error
        return found.offset

    return load_part


async def abort(call: Call) -> web.StreamResponse:
    name, batch = _bulk_load(call), _batch(call)
    body = await call.read_json(AbortBody, bytes_max=ABORT_BYTES_MAX)
    deleted = await call.services.broker.bulk_loads.abort(
        name, batch, body.ledgers, await _caller(call, batch, None)
    )
    return call.reply(AbortBody(deleted))


def _bulk_load(call: Call) -> str:
    return checked_name("bulk load", call.variables["bulk_load"])


def _batch(call: Call) -> int:
    text = call.variables["batch"]
    found = whole(text)
    if found is None:
        raise bad_parameter("batch", text, whole_hint(0, OFFSET_MAX))
    return found


async def _caller(call: Call, batch: int, after: int | None) -> Caller:
    if cluster := call.headers.get(CLUSTER_HEADER):
        ours = await call.services.broker.bulk_loads.cluster()
        if cluster != ours:
            raise OTHER_CLUSTER(
                f"{CLUSTER_HEADER} is {cluster[:64]}, but this is cluster {ours}: another cluster "
                "has this address now. Start the query again with a new checkpoint"
            )
    token = call.headers.get(TOKEN_HEADER, "").encode("utf-8", "surrogateescape")
    if len(token) > TOKEN_BYTES_MAX:
        raise Problem(
            400,
            "invalid-header",
            f"{TOKEN_HEADER} has {len(token)} bytes; at most {TOKEN_BYTES_MAX}",
        )
    if after is not None and after >= batch:
        raise Problem(
            422, "invalid-body", f"batch {batch} cannot come after batch {after}: numbers ascend"
        )
    return Caller(digest_of(token), after)


def committed(name: str, done: Committed) -> BulkLoad:
    shown = show(name, done.record, done.offsets)
    shown.complete, shown.repeated = True, done.repeated
    return shown


def show(name: str, record: BulkLoadRecord, offsets: dict[PartitionName, int | None]) -> BulkLoad:
    return BulkLoad(
        name,
        record.batch,
        record.complete,
        record.begun == record.batch >= 0,
        [
            BulkLoadShare(
                f"{part.namespace}/{part.topic}",
                part.partition,
                sum(one.count for one in part.ledgers),
                offsets.get(PartitionName(part.namespace, part.topic, part.partition)),
                [one.ledger_id for one in part.ledgers],
            )
            for part in record.parts
        ],
    )
