"""Transactions over HTTP: commit and abort at any broker, splice at a partition's owner.

The rules are in bulkload/rules.py. Every call here may be made again as it stands.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web

from octavo.broker.bulkload.checks import Offer
from octavo.broker.bulkload.driver import Committed, Splice
from octavo.broker.bulkload.rules import Caller, digest_of
from octavo.broker.errors import PartitionNotFound, TopicNotFound, TransactionNotFound
from octavo.broker.http.api.answers import (
    Name,
    Spliced,
    Transaction,
    TransactionShare,
    TransactionTurn,
)
from octavo.broker.http.call import OFFSET_MAX, Call, bad_parameter
from octavo.broker.http.forwarding import ask_partition, at_owner
from octavo.broker.http.problems import Problem
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, TopicName, checked_name
from octavo.metadata.transactions import PrivateLedger, TransactionRecord

TOKEN_HEADER = "Transaction-Token"
TOKEN_BYTES_MAX = 200
CONTENT_CHARS_MAX = 100
SHARES_MAX = 1_000
"""Partitions of a batch that its writer publishes: the record is bounded by ZooKeeper's 1 MB."""
ABORTED_LEDGERS_MAX = 10_000
"""Ledgers that one call gives up; a writer with more calls again."""
LEDGERS_MAX = 4_000
"""Ledgers of one part: a partition holds no more that came whole."""
Number = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX, extra_json_schema={"format": "int64"})]
After = Annotated[
    int,
    msgspec.Meta(
        ge=-1,
        le=OFFSET_MAX,
        description="the batch before, of a writer whose numbers have gaps or whose id may be new",
    ),
]
Stamp = Annotated[int, msgspec.Meta(ge=-OFFSET_MAX, le=OFFSET_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_GONE = {"topic-not-found": TopicNotFound, "partition-not-found": PartitionNotFound}


class LedgerBody(msgspec.Struct, forbid_unknown_fields=True):
    """One private ledger."""

    id: Number
    messages: Annotated[int, msgspec.Meta(ge=1, le=OFFSET_MAX)]
    bytes: Number
    first_ms: Annotated[Stamp, msgspec.Meta(description="the oldest timestamp in it")]
    last_ms: Annotated[Stamp, msgspec.Meta(description="the newest")]
    disorder_ms: Annotated[
        Stamp,
        msgspec.Meta(
            description="no batch's newest timestamp lies further below that of an earlier one; "
            "-1, the default: not known"
        ),
    ] = -1

    def ledger(self) -> PrivateLedger:
        """As the record holds it."""
        return PrivateLedger(
            self.id, self.messages, self.bytes, self.first_ms, self.last_ms, self.disorder_ms
        )


class PartBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be added to one partition."""

    topic: str
    partition: PartitionNumber
    ledgers: Annotated[list[LedgerBody], msgspec.Meta(max_length=LEDGERS_MAX)]

    def offer(self) -> Offer:
        """As the driver takes it. Raises `InvalidName`."""
        name = TopicName.parse(self.topic).partition(self.partition)
        return Offer(name, tuple(one.ledger() for one in self.ledgers))


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a commit. `published`: by the writer itself, which has begun the batch.

    `after`: the batch before, where numbers have gaps or the id may be forgotten.
    """

    parts: list[PartBody]
    published: Annotated[bool, msgspec.Meta(description="by the caller, which has begun it")] = (
        False
    )
    after: After | None = None


class ShareBody(msgspec.Struct, forbid_unknown_fields=True):
    """What will be published to one partition; `content` in the writer's own words."""

    topic: str
    partition: PartitionNumber
    content: Annotated[
        str,
        msgspec.Meta(
            max_length=CONTENT_CHARS_MAX,
            description="the caller's own words; a repeat must say the same",
        ),
    ]


class BeginBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a begin. `after`: as in a commit."""

    parts: Annotated[list[ShareBody], msgspec.Meta(max_length=SHARES_MAX)]
    after: After | None = None


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an abort."""

    ledgers: Annotated[list[Number], msgspec.Meta(max_length=ABORTED_LEDGERS_MAX)]


class SpliceBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a splice."""

    transaction: Name
    batch: Number


async def get_transaction(call: Call) -> web.StreamResponse:
    """`GET /v1/transactions/{transaction}`."""
    name = _transaction(call)
    record = await call.services.broker.transactions.newest(name)
    if record.batch < 0:
        raise TransactionNotFound(f"no batch of transaction {name} was committed")
    return call.reply(show(name, record, {}))


async def commit(call: Call) -> web.StreamResponse:
    """`POST …/batches/{batch}/commit`."""
    name, batch = _transaction(call), _batch(call)
    body = await call.read_json(CommitBody)
    if body.published and body.parts:
        raise Problem(
            422, "invalid-body", "what its writer has published has no ledgers: parts must be empty"
        )
    offers = [part.offer() for part in body.parts]
    done = await call.services.broker.transactions.commit(
        name,
        batch,
        offers,
        _splicing(call),
        published=body.published,
        caller=_caller(call, batch, body.after),
    )
    return call.reply(committed(name, done))


async def begin(call: Call) -> web.StreamResponse:
    """`POST …/batches/{batch}/begin`."""
    name, batch = _transaction(call), _batch(call)
    body = await call.read_json(BeginBody)
    content = {
        TopicName.parse(one.topic).partition(one.partition): one.content for one in body.parts
    }
    if len(content) < len(body.parts):
        raise Problem(422, "invalid-body", "a partition stands twice in the batch")
    is_new = await call.services.broker.transactions.begin(
        name, batch, content, _splicing(call), _caller(call, batch, body.after)
    )
    return call.reply(TransactionTurn(name, batch, repeated=not is_new))


def _splicing(call: Call) -> Splice:
    async def splice(partition: PartitionName, transaction: str, number: int) -> int | None:
        async def here(found: Partition) -> dict[str, Any]:
            return {"offset": await found.splice(transaction, number)}

        try:
            answer = await ask_partition(
                call, partition, here, "POST", "/splice",
                body={"transaction": transaction, "batch": number},
            )  # fmt: skip
        except Problem as error:
            raise _GONE[error.code](error.detail) if error.code in _GONE else error from error
        offset: int | None = answer["offset"]
        return offset

    return splice


async def abort(call: Call) -> web.StreamResponse:
    """`POST …/batches/{batch}/abort`."""
    name, batch = _transaction(call), _batch(call)
    body = await call.read_json(AbortBody)
    deleted = await call.services.broker.transactions.abort(
        name, batch, body.ledgers, _caller(call, batch, None)
    )
    return call.reply(AbortBody(deleted))


async def splice(call: Call) -> web.StreamResponse:
    """`POST …/partitions/{partition}/splice`."""
    name = call.partition
    assert name is not None
    body = await call.read_json(SpliceBody)
    transaction = checked_name("transaction", body.transaction)

    async def here(partition: Partition) -> web.StreamResponse:
        return call.reply(Spliced(await partition.splice(transaction, body.batch)))

    return await at_owner(call, name, here)


def _transaction(call: Call) -> str:
    return checked_name("transaction", call.variables["transaction"])


def _batch(call: Call) -> int:
    text = call.variables["batch"]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= OFFSET_MAX):
        raise bad_parameter("batch", text, f"a whole number from 0 to {OFFSET_MAX}")
    return int(text)


def _caller(call: Call, batch: int, after: int | None) -> Caller:
    """Who asks. Raises a `Problem` for a token that is none and for an order that is none."""
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


def committed(name: str, done: Committed) -> Transaction:
    """The answer of a commit: every partition has its part."""
    shown = show(name, done.record, done.offsets)
    shown.complete, shown.repeated = True, done.repeated
    return shown


def show(
    name: str, record: TransactionRecord, offsets: dict[PartitionName, int | None]
) -> Transaction:
    """What the record says; `offsets`: where each partition's part begins, as far as is known."""
    return Transaction(
        name,
        record.batch,
        record.complete,
        record.begun == record.batch >= 0,
        [
            TransactionShare(
                f"{part.namespace}/{part.topic}",
                part.partition,
                sum(one.count for one in part.ledgers),
                offsets.get(PartitionName(part.namespace, part.topic, part.partition)),
                [one.ledger_id for one in part.ledgers],
            )
            for part in record.parts
        ],
    )
