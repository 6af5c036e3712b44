"""Move partitions by hand: drain a broker, unload a topic.

A call about a broker goes to that broker, whichever broker was asked. A call about a partition goes
to its owner, as always.
"""

from __future__ import annotations

from aiohttp import web

from octavo.broker.http.api import answers
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import (
    all_or_raise,
    ask_all,
    operate,
    redirected,
    topic_of,
)
from octavo.broker.http.problems import problem_from
from octavo.broker.operations.kinds import Drain, Drained, Refused, Unload, Unloaded
from octavo.broker.types import PartitionName


async def drain_broker(call: Call) -> web.StreamResponse:
    """`POST /v1/brokers/{broker}/drain`."""
    return await _at_broker(call, draining=True)


async def undrain_broker(call: Call) -> web.StreamResponse:
    """`DELETE /v1/brokers/{broker}/drain`."""
    return await _at_broker(call, draining=False)


async def _at_broker(call: Call, *, draining: bool) -> web.StreamResponse:
    broker = call.variables["broker"]
    try:
        found = await call.services.operations.at_broker(
            call, call.identity, Drain(broker, draining)
        )
    except Refused as error:
        raise problem_from(error.refusal) from error
    assert isinstance(found, Drained)
    return call.reply(answers.Drained(broker, found.draining, found.partitions))


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
