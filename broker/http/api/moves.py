"""Move partitions by hand: drain a broker, unload a topic; and take over what is handed on.

A call about a broker goes to that broker, whichever broker was asked. A call about a partition goes
to its owner, as always.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web

from octavo.broker.cluster.handing import Handed
from octavo.broker.errors import NotOwner
from octavo.broker.http.api import answers
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import (
    all_or_raise,
    ask_all,
    operate,
    redirected,
    topic_of,
)
from octavo.broker.log.ledger_list import Contents
from octavo.broker.operations.kinds import Unload, Unloaded
from octavo.broker.partition.ending import Foretold, PartitionEnd
from octavo.broker.types import Owner, PartitionName


class PrepareBody(msgspec.Struct, forbid_unknown_fields=True):
    """What an heir is told before a partition is released for it."""

    incarnation: str
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    has_state: bool


_TOLD_MAX = 1_000
"""Limit of characters in texts that a broker sends to another."""


class EndBody(msgspec.Struct, forbid_unknown_fields=True):
    """How the owner left the partition: partition/ending.py."""

    epoch: Annotated[int, msgspec.Meta(ge=0)]
    ledger: Annotated[int, msgspec.Meta(ge=0)]
    last_entry: Annotated[int, msgspec.Meta(ge=-1)]
    contents: tuple[int, int, int, int, int]
    state_ledger: int | None
    state: list[bytes]


class TakeBody(msgspec.Struct, forbid_unknown_fields=True):
    """What an heir is told by the owner that hands a partition on."""

    incarnation: str
    placed: bool = False
    end: EndBody | None = None
    by: Annotated[str, msgspec.Meta(max_length=_TOLD_MAX)] = ""
    why: Annotated[str, msgspec.Meta(max_length=_TOLD_MAX)] = ""


def end_body(end: PartitionEnd | None) -> EndBody | None:
    """Convert the end of a partition to the form that is sent."""
    if end is None:
        return None
    return EndBody(
        end.epoch, end.ledger_id, end.last_entry, end.contents, end.state_ledger, list(end.state)
    )


def _end(body: EndBody | None) -> PartitionEnd | None:
    if body is None:
        return None
    contents = Contents(*body.contents)
    return PartitionEnd(
        body.epoch, body.ledger, body.last_entry, contents, body.state_ledger, tuple(body.state)
    )


async def drain_broker(call: Call) -> web.StreamResponse:
    """`POST /v1/brokers/{broker}/drain`."""
    return await _at_broker(call, draining=True)


async def undrain_broker(call: Call) -> web.StreamResponse:
    """`DELETE /v1/brokers/{broker}/drain`."""
    return await _at_broker(call, draining=False)


async def _at_broker(call: Call, *, draining: bool) -> web.StreamResponse:
    broker, wanted = call.services.broker, call.variables["broker"]
    if wanted == broker.broker_id:
        await (broker.drain() if draining else broker.undrain())
        standing = broker.standing()
        return call.reply(answers.Drained(wanted, standing.draining, standing.partitions))
    known = {one.broker_id: one for one in broker.registry.brokers()}
    if wanted not in known:
        raise broker.registry.no_such_broker(wanted)
    if call.forwarded:
        raise NotOwner(f"this is broker {broker.broker_id}, not {wanted}")
    other = Owner(wanted, known[wanted].url, False, "")
    return await call.services.peers.forward(call, other)


async def unload_topic(call: Call) -> web.StreamResponse:
    """`POST /v1/topics/{namespace}/{topic}/unload`: all partitions, some at a time."""
    info = await topic_of(call)
    to = call.text("to")
    _check_live(call, to)

    async def one(name: PartitionName) -> answers.Unloaded:
        return await _unload(call, name, to, is_part=True)

    names = [info.name.partition(number) for number in range(info.settings.partitions)]
    at_once = call.services.broker.config.drain_moves_max
    moved = []
    for start in range(0, len(names), at_once):
        some = names[start : start + at_once]
        moved += all_or_raise(await ask_all([one(name) for name in some]))
    return call.reply(answers.UnloadedAll(moved))


async def unload_partition(call: Call) -> web.StreamResponse:
    """`POST /v1/topics/{namespace}/{topic}/partitions/{partition}/unload`."""
    name = call.partition
    assert name is not None
    to = call.text("to")
    _check_live(call, to)

    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    return call.reply(await _unload(call, name, to))


async def _unload(
    call: Call, name: PartitionName, to: str, *, is_part: bool = False
) -> answers.Unloaded:
    moved = await operate(call, Unload(name, to), Unloaded, is_part=is_part)
    return answers.Unloaded(name.partition, moved.from_broker, moved.to_broker)


def _check_live(call: Call, to: str) -> None:
    registry = call.services.broker.registry
    if to and to not in {one.broker_id for one in registry.brokers()}:
        raise registry.no_such_broker(to)


async def prepare_partition(call: Call) -> web.StreamResponse:
    """`POST …/partitions/{partition}/prepare`: from the broker that will hand it on."""
    name = call.partition
    assert name is not None
    body = await call.read_json(PrepareBody, bytes_max=call.services.config.body_bytes_max)
    foretold = Foretold(body.incarnation, body.epoch, body.has_state)
    await call.services.broker.ownership.prepare(name, foretold)
    return web.Response(status=204)


async def take_partition(call: Call) -> web.StreamResponse:
    """`POST …/partitions/{partition}/take`: from the broker that hands it on."""
    name = call.partition
    assert name is not None
    body = await call.read_json(TakeBody, bytes_max=call.services.config.body_bytes_max)
    handed = Handed(body.incarnation, body.placed, _end(body.end), body.by, body.why)
    await call.services.broker.ownership.take(name, handed)
    return web.Response(status=204)
