"""One message with a bad key, time or header took those beside it along: some were never sent, and
nobody was told.

A key that was a `bytearray` broke off the hand-over between the threads: it, and all that was sent
right after it, was neither sent nor failed, and `flush` was content. A time beyond 64 bits, or a
header's name that is no text, failed only when the batch was built, with all others in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from octavo import Client
from octavo.client.errors import InvalidCall
from octavo.protocol.limits import JSON_HEADERS_MAX, RECORD_HEADERS_MAX, TIMESTAMP_MS_MAX
from tests.support.broker_thread import BrokerThread, broker_thread

Encoding = Literal["batch", "ndjson"]
ENCODINGS: list[Encoding] = ["batch", "ndjson"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with broker_thread() as one:
        yield one


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[Client]:
    with Client(broker.url) as one:
        one.create_topic("t", partitions=2)
        yield one


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "bad",
    [
        {"timestamp_ms": 2**63},
        {"timestamp_ms": TIMESTAMP_MS_MAX + 1},
        {"timestamp_ms": -2},
        {"timestamp_ms": "5"},
        {"timestamp_ms": 5.5},
        {"deliver_at_ms": "tomorrow"},
        {"deliver_at_ms": -1},
        {"deliver_at_ms": 2**80},
        {"headers": {"\ud800": b"1"}},
        {"headers": {b"a": b"1"}},
        {"headers": [("a", None)] * (RECORD_HEADERS_MAX + 1)},
        {"key": 5},
        {"key": ["k"]},
        {"partition": 0.0},
        {"partition": "0"},
    ],
    ids=lambda one: f"{one!s:.40}",
)
def test_it_is_refused_alone(client: Client, encoding: Encoding, bad: dict[str, Any]) -> None:
    with client.producer("t", encoding=encoding, linger_ms=1) as producer:
        sent = [producer.send("before", key="k")]
        with pytest.raises((InvalidCall, TypeError)):
            producer.send("x", **bad)
        sent += [producer.send("after", key="k") for _ in range(10)]
        offsets = [one.result(10).offset for one in sent]
    assert offsets == [*range(offsets[0], offsets[0] + 11)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_all_that_has_bytes_is_taken(client: Client, encoding: Encoding, kind: type) -> None:
    where = client.publish("t", "x", key=b"k\xff")
    with client.producer("t", encoding=encoding) as producer:
        receipt = producer.send(kind(b"v\xff"), key=kind(b"k\xff"), headers={"h": kind(b"\xff")})
    found = receipt.result()
    assert found.partition == where.partition
    (message,) = client.read("t", partition=found.partition, start=found.offset)
    assert (message.key, message.value, message.headers) == (b"k\xff", b"v\xff", (("h", b"\xff"),))


def test_lines_have_bounds_of_their_own(client: Client) -> None:
    with client.producer("t", encoding="ndjson") as producer:
        receipt = producer.send("x", headers=[("a", None)] * JSON_HEADERS_MAX)
        with pytest.raises(InvalidCall, match="headers"):
            producer.send("x", headers=[("a", None)] * (JSON_HEADERS_MAX + 1))
        with pytest.raises(InvalidCall, match="1970"):
            producer.send("x", timestamp_ms=-1)
    assert receipt.result().offset >= 0


def test_what_cannot_be_placed_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = client.producer("t")
    take = producer._inner.take

    def failing(item: Any, size: int, key: bytes | None, partition: int | None) -> Any:
        if key == b"bad":
            raise MemoryError
        return take(item, size, key, partition)

    monkeypatch.setattr(producer._inner, "take", failing)
    receipts = [producer.send("x", key=key) for key in ("good", "bad", "good")]
    assert receipts[0].result(10).offset + 1 == receipts[2].result(10).offset
    with pytest.raises(MemoryError):
        receipts[1].result(10)
    with pytest.raises(MemoryError):
        producer.flush()
    producer.close()
