"""Fork a topic: make a new topic that begins with its messages, without copying them.

The broker that is asked does it (broker/cluster/forks.py). Only the owners know where their
partitions end and in which entry an offset lies, so each owner is asked for its point first. If a
partition has changed its owner since, the owners are asked again.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from aiohttp import web
from msgspec import Meta

from octavo.broker.cluster.forks import OwnersPoint
from octavo.broker.errors import ForkDisturbed
from octavo.broker.http.api.read import position_of
from octavo.broker.http.api.topics import show_topic
from octavo.broker.http.call import OFFSET_MAX, Call, time_hint
from octavo.broker.http.forwarding import all_or_raise, ask_all, operate, topic_of
from octavo.broker.http.problems import Problem
from octavo.broker.internal_topics import check_not_internal
from octavo.broker.log.ledger_list import Cut, ForkPoint
from octavo.broker.operations.kinds import FindForkPoint, ForkPlace, Position, at_of
from octavo.broker.types import TopicInfo, TopicName
from octavo.protocol.numbers import whole
from octavo.security.rules import Kind, Operation, Resource

_TRIES_MAX = 3
FORK_BYTES_MAX = 1024 * 1024
"""Limit of the body: a place for each of the maximum number of partitions."""


class ForkBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a fork is called, and where it is made."""

    schema_name: ClassVar = "Fork"

    name: Annotated[str, Meta(description="of the new topic, in the same namespace")]
    at: Annotated[
        str | int | dict[str, str | int],
        Meta(
            description="latest, earliest, an RFC 3339 time, or where each partition is forked: "
            'before which offset, as in {"0": 41, "1": "latest"}; what is left away is `latest`. '
            "Of a topic with one partition also an offset"
        ),
    ] = "latest"


async def fork(call: Call) -> web.StreamResponse:
    """`POST /v1/topics/{namespace}/{topic}/fork`."""
    body = await call.read_json(ForkBody, bytes_max=FORK_BYTES_MAX)
    name = TopicName.of(call.namespace, body.name)
    _check_may_create(call, name)
    info = await topic_of(call)
    places = _places(body.at, info)
    await call.services.quotas.check_topics(name)
    tries = 0
    while True:
        points = await points_of(call, info, places)
        try:
            made = await call.services.broker.forks.make(info, name, points)
        except ForkDisturbed:
            tries += 1
            if tries == _TRIES_MAX:
                raise
        else:
            return call.reply(show_topic(made), status=201)


def _check_may_create(call: Call, name: TopicName) -> None:
    """Check the right to create the topic, on it or on its namespace."""
    check_not_internal(name)
    gate = call.services.gate
    topic = Resource(Kind.TOPIC, str(name))
    namespace = Resource(Kind.NAMESPACE, name.namespace)
    if not gate.secured or gate.may(call.identity, Operation.CREATE, namespace):
        return
    call.check(Operation.CREATE, topic)


def _places(at: str | int | dict[str, str | int], info: TopicInfo) -> dict[int, str]:
    """Return the place for each partition, as text. Raises a 422."""
    count = info.settings.partitions
    if isinstance(at, dict):
        found = dict.fromkeys(range(count), "latest")
        for key, place in at.items():
            number = whole(key, count - 1)
            if number is None:
                raise _wrong(f"{key!r:.60} is no partition of {info.name}, which has {count}")
            found[number] = _checked(place)
        return found
    if isinstance(_position(_checked(at)), int) and count > 1:
        raise _wrong(
            f"{info.name} has {count} partitions, and an offset counts within one: "
            'say which, as in {"0": 41, "1": 7}'
        )
    return dict.fromkeys(range(count), _checked(at))


def _checked(place: str | int) -> str:
    text = str(place)
    position = _position(text)
    if position is None or (isinstance(position, tuple) and len(position) != 1):
        raise _wrong(
            f"{text!r:.60} is no place to fork at; latest, earliest, an offset from 0 to "
            f"{OFFSET_MAX} and an RFC 3339 time are{time_hint(text)}"
        )
    return text


def _position(text: str) -> Position | None:
    return None if text.count(":") == 2 and "T" not in text else position_of(text)


def _wrong(what: str) -> Problem:
    return Problem(422, "invalid-position", f"at: {what}")


async def points_of(call: Call, info: TopicInfo, places: dict[int, str]) -> dict[int, OwnersPoint]:
    """Ask the owners where each partition would be forked."""
    found = all_or_raise(
        await ask_all(
            [
                operate(
                    call,
                    FindForkPoint(info.name.partition(number), at_of(_known(place))),
                    ForkPlace,
                    is_part=True,
                )
                for number, place in places.items()
            ]
        )
    )
    return {number: _point(one) for number, one in zip(places, found, strict=True)}


def _known(place: str) -> Position:
    position = _position(place)
    assert position is not None, "it was checked"
    return position


def _point(place: ForkPlace) -> OwnersPoint:
    cut = None if place.cut is None else Cut(*place.cut)
    return OwnersPoint(place.epoch, ForkPoint(place.offset, cut))
