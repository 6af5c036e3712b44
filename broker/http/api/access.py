"""Exclusive access to a partition for one producer: acquire, show, release. (state/producers.py)"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from aiohttp import web
from msgspec import Meta

from octavo.broker.http.api.topic_body import TIME, time_ms
from octavo.broker.http.call import Call
from octavo.broker.http.forwarding import operate, redirected
from octavo.broker.http.problems import Problem
from octavo.broker.operations.kinds import (
    AccessNow,
    AcquireAccess,
    DescribeAccess,
    Done,
    ReleaseAccess,
)
from octavo.broker.types import PartitionName, checked_name

LAST_EPOCH = 2**53
SESSION_MS_MIN, SESSION_MS_LONGEST = 1_000, 24 * 3_600_000


class AccessBody(msgspec.Struct, forbid_unknown_fields=True):
    """The producer that wants exclusive access, and how it gets it."""

    schema_name: ClassVar = "ProducerAccess"

    producer: Annotated[str, Meta(description="a name; if it calls again, it gets a new epoch")]
    fencing: Annotated[
        bool, Meta(description="the present holder loses the access; false: wait until it goes")
    ] = False
    session_timeout: Annotated[
        int | float | str, Meta(description=TIME, extra_json_schema={"default": 30})
    ] = 30


class AccessShown(msgspec.Struct):
    """The producer that alone may publish to a partition."""

    schema_name: ClassVar = "ProducerAccessShown"

    partition: int
    epoch: Annotated[int, Meta(description="for `Producer-Access-Epoch`")]
    producer: Annotated[str | None, Meta(description="null: every producer may publish")]
    next_offset: Annotated[
        int, Meta(description="no message published under this epoch has a lower offset")
    ]


async def acquire(call: Call) -> web.StreamResponse:
    wait_ms = call.duration_ms("wait", 0, call.services.config.wait_ms_max)
    name = _partition(call)
    body = await call.read_json(AccessBody)
    producer = checked_name("producer", body.producer)
    session_ms = time_ms("session_timeout", body.session_timeout)
    if not SESSION_MS_MIN <= session_ms <= SESSION_MS_LONGEST:
        raise Problem(
            422,
            "invalid-settings",
            f"session_timeout is {body.session_timeout!r}; it must be from "
            f"{SESSION_MS_MIN // 1000} s to {SESSION_MS_LONGEST // 1000} s",
        )

    return await _now(call, AcquireAccess(name, producer, session_ms, body.fencing, wait_ms))


async def release(call: Call) -> web.StreamResponse:
    epoch = call.integer("epoch", -1, 0, LAST_EPOCH)
    if epoch < 0:
        raise Problem(400, "invalid-parameter", "epoch must be given: the epoch of the access")

    name = _partition(call)
    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    await operate(call, ReleaseAccess(name, epoch), Done)
    return web.Response(status=204)


async def show(call: Call) -> web.StreamResponse:
    return await _now(call, DescribeAccess(_partition(call)))


async def _now(call: Call, operation: AcquireAccess | DescribeAccess) -> web.StreamResponse:
    name = operation.name
    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    now = await operate(call, operation, AccessNow)
    return call.reply(AccessShown(name.partition, now.epoch, now.producer or None, now.next_offset))


def _partition(call: Call) -> PartitionName:
    name = call.partition
    assert name is not None, "the path names it"
    return name
