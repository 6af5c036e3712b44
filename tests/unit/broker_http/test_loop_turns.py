"""No call holds a broker's loop up, at the size of its limits: processor time of its longest turn.

Each of these took seconds, for its work was bounded in bytes and not in steps.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import itertools
import zlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from octavo.broker.http.api.groups import TOPICS_MAX
from octavo.broker.http.inflating import Inflater
from octavo.broker.types import SubscriptionInfo, SubscriptionSettings, TopicName
from octavo.ledger.read.open_batch import SMALL_BYTES
from octavo.protocol.batch import InvalidBatch
from octavo.protocol.compression import Compression, unpack
from tests.support.fake_broker import Answer, Running
from tests.support.loop_time import LoopTime

TURN_S_MAX = 0.05
T = "/v1/topics/public/t"


class Case(NamedTuple):
    """A call at the size of its limits. Only `call` is measured."""

    prepare: Callable[[Running], Awaitable[None]]
    call: Callable[[Running], Awaitable[Answer]]
    check: Callable[[Answer], bool]


async def _long_names(one: Running) -> None:
    topics = one.cluster.topics
    for n in range(500):
        topics[TopicName("public", "a" * 240 + f"c{n:03}")] = topics[TopicName("public", "t")]


async def _join_by_patterns(one: Running) -> Answer:
    patterns = ["*" + "a" * (100 + n) + "b*" + "?a" * 10 + "*" for n in range(TOPICS_MAX)]
    return await one.api.call("POST", "/v1/groups/public/g/members/m", json={"topics": patterns})


async def _send_empty_members(one: Running) -> Answer:
    return await one.api.call(
        "POST", f"{T}/messages", data=EMPTY_MEMBERS,
        headers={"Content-Type": "text/plain", "Content-Encoding": "gzip"},
    )  # fmt: skip


async def _subscriptions(one: Running) -> None:
    for n in range(4_000):
        info = SubscriptionInfo(f"s{n:04}", SubscriptionSettings(), 0)
        one.cluster.subscriptions[TopicName("public", "t")][info.name] = info


async def _wide_topic(one: Running) -> None:
    assert (await one.api.put("/v1/topics/public/wide", json={"partitions": 2_000})).status == 201


async def _nothing(one: Running) -> None:
    pass


async def _twenty_documents(one: Running) -> Answer:
    answers = await asyncio.gather(*(one.api.get("/openapi.json") for _ in range(20)))
    return answers[0]


EMPTY_MEMBERS = gzip.compress(b"") * 200_000
CASES = {
    # 20 names of 248 characters took 20 s, and the broker ended.
    "patterns": Case(_long_names, _join_by_patterns, lambda said: said.json()["partitions"] == []),
    # 4 MB of them took 11 s.
    "gzip": Case(_nothing, _send_empty_members, lambda said: b"members" in said.body),
    # A list of 4,000 took 1.5 s.
    "subscriptions": Case(
        _subscriptions,
        lambda one: one.api.get(f"{T}/subscriptions"),
        lambda said: len(said.json()["subscriptions"]) == 4_000,
    ),
    # A topic of 2,000 took 2.8 s to show.
    "partitions": Case(
        _wide_topic,
        lambda one: one.api.get("/v1/topics/public/wide"),
        lambda said: len(said.json()["partitions"]) == 2_000,
    ),
    "openapi": Case(_nothing, _twenty_documents, lambda said: said.status == 200),
    "metrics": Case(
        _wide_topic,
        lambda one: one.api.get("/metrics"),
        lambda said: said.body.count(b"octavo_partition_next_offset{") >= 2_000,
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_no_call_holds_the_loop_up(one: Running, name: str) -> None:
    assert (await one.api.put(T)).status == 201
    await one.api.get("/openapi.json")  # made once
    await CASES[name].prepare(one)
    await asyncio.sleep(0)
    gc.collect()
    async with LoopTime() as loop:
        answer = await CASES[name].call(one)
    assert CASES[name].check(answer), answer
    assert loop.longest_s < TURN_S_MAX


def test_blocks_of_nothing_are_not_unpacked_one_by_one() -> None:
    """Packed by snappy in xerial's form: 50,000 blocks in what is unpacked on the loop."""
    block = b"\x00\x00\x00\x01\x00"
    packed = b"\x82SNAPPY\x00" + bytes(8) + block * ((SMALL_BYTES - 16) // len(block))
    with pytest.raises(InvalidBatch, match="more than 4096 blocks"):
        unpack(Compression.SNAPPY, packed)


def test_many_members_of_an_ordinary_size_are_a_body() -> None:
    member = gzip.compress(bytes(range(256)) * 8, 0)
    inflater = Inflater("gzip")
    pieces = itertools.chain(*(inflater.feed(member) for _ in range(1_000)))
    assert sum(map(len, pieces)) == 1_000 * 2_048
    assert zlib.decompress(member, 31) == bytes(range(256)) * 8
