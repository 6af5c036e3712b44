"""A producer id belongs to the principal that uses it.

A user with the right to read and publish took another user's producer id from its batches, and
stored the next sequence: the other's message was then a "repeat" and was lost, or its producer was
locked out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.broker.http.call import JSON, RECORD_BATCH
from octavo.protocol.batch import check_batch, read_header
from octavo.protocol.records import Record, build_batch
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.memory_cluster import Running, running

ONE = "/v1/topics/public/one"
RULES = ["allow user:ann all *", "allow user:bob produce,consume topic:public/one"]


@pytest.fixture
async def secured() -> AsyncIterator[Running]:
    authority = FakeAuthority()
    authority.secure(*RULES, "allow user:bob produce topic:public/s")
    async with running(2, authority=authority, authenticator=FakeAuthenticator()) as two:
        assert (await two.api.put(ONE, headers=as_user("ann"))).status == 201
        yield two


async def publish(
    one: Running, user: str, value: bytes, sequence: int, *, way: str, broker: int = 0,
    producer: int = 77, epoch: int = 0,
) -> Any:  # fmt: skip
    who = as_user(user) if user else {}
    api = one.apis[broker]
    path = ONE + "/messages"
    if way.startswith("batch"):
        batch = build_batch(
            [Record(None, value)], producer_id=producer, producer_epoch=epoch,
            base_sequence=sequence,
        )  # fmt: skip
        query = "?results=batches" if way == "batches" else ""
        return await api.post(path + query, batch, headers={**who, "Content-Type": RECORD_BATCH})
    numbered = {
        "Producer-Id": str(producer), "Producer-Epoch": str(epoch), "Producer-Seq": str(sequence),
        "Content-Type": JSON,
    }  # fmt: skip
    return await api.post(path, b'{"value": "%s"}' % value, headers={**who, **numbered})


async def stored(one: Running) -> list[bytes | None]:
    return [record.value for _, record in (await one.records("public/one")).values()]


@pytest.mark.parametrize("broker", [0, 1])
@pytest.mark.parametrize("way", ["json", "batch", "batches"])
async def test_another_ones_sequence_cannot_be_taken(
    secured: Running, way: str, broker: int
) -> None:
    assert (await publish(secured, "ann", b"a0", 0, way=way)).status == 200
    for sequence, status in ((1, 409), (0, 200), (1, 200)):
        answer = await publish(secured, "bob", b"b%d" % sequence, sequence, way=way, broker=broker)
        assert answer.status == status, answer
    assert (await publish(secured, "bob", b"b", 0, way=way, epoch=9)).status == 200
    assert (await publish(secured, "ann", b"a1", 1, way=way, broker=broker)).status == 200
    assert len(await stored(secured)) == 5


@pytest.mark.parametrize("way", ["json", "batch", "batches"])
async def test_a_repeat_is_known_by_whatever_way_it_comes(secured: Running, way: str) -> None:
    """Also where another broker forwarded it the first time."""
    for broker in (1, 0):
        answer = await publish(secured, "ann", b"a0", 0, way="batch", broker=broker)
        assert answer.status in (200, 204)
    for broker in (0, 1):
        await publish(secured, "ann", b"a0", 0, way=way, broker=broker)
    assert len(await stored(secured)) == 1


async def test_what_a_reader_sees_is_of_no_use(secured: Running) -> None:
    await publish(secured, "ann", b"a0", 0, way="batch")
    answer = await secured.apis[0].get(
        ONE + "/messages", headers={**as_user("bob"), "Accept": RECORD_BATCH}
    )
    header = check_batch(answer.body)
    assert header.producer_id != 77
    taken = await publish(secured, "bob", b"x", 1, way="batch", producer=header.producer_id)
    assert taken.status == 409
    assert (await publish(secured, "ann", b"a1", 1, way="batch")).status == 200


async def test_an_unsecured_cluster_stores_the_id_as_given() -> None:
    async with running(1) as one:
        await one.api.put(ONE)
        await publish(one, "", b"a0", 0, way="batch")
        answer = await one.api.get(ONE + "/messages", headers={"Accept": RECORD_BATCH})
        assert read_header(answer.body).producer_id == 77


STREAM = "/v1/durable-streams/public/s"


async def append(one: Running, user: str, body: bytes, sequence: int, epoch: int = 0) -> int:
    headers = {
        **as_user(user), "Content-Type": "text/plain", "Producer-Id": "p",
        "Producer-Epoch": str(epoch), "Producer-Seq": str(sequence),
    }  # fmt: skip
    found: int = (await one.api.post(STREAM, body, headers=headers)).status
    return found


async def test_of_durable_streams_too(secured: Running) -> None:
    """Their producers' names are in the headers of the messages."""
    made = await secured.api.call(
        "PUT", STREAM, headers={**as_user("ann"), "Content-Type": "text/plain"}
    )
    assert made.status == 201, made
    assert await append(secured, "ann", b"a0", 0) == 200
    assert await append(secured, "bob", b"b1", 1) == 409
    assert await append(secured, "bob", b"b0", 0, epoch=9) == 200
    assert await append(secured, "ann", b"a1", 1) == 200
    assert await append(secured, "ann", b"a1", 1) == 204
    found = await secured.api.get(STREAM, headers=as_user("ann"))
    assert found.body == b"a0b0a1"
