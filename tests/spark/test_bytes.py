"""Spark's columns have the published bytes: no code parses a value between the bookies and
Spark."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo import Client
from octavo.client.types import Message
from tests.support.published import seen_by_readers
from tests.unit.octavo.test_client_values import CHANGED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

Told = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def drawn(rng: random.Random) -> bytes | None:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(CHANGED)
    if kind == 1:
        return rng.randbytes(rng.choice([0, 1, 3, 40, 2_000]))
    if kind == 2:
        return "".join(chr(rng.choice([0, 9, 0x7F, 0xE9, 0x2028, 0x1F600])) for _ in "abc").encode()
    value = {"n": rng.choice([1.0, -0.0, 10**30, 1e-7]), "t": rng.choice(["é", "/", "\u2028"])}
    written = json.dumps(value, ensure_ascii=kind == 3, indent=rng.choice([None, 1]))
    return rng.choice(["", " ", "\ufeff"]).encode() + written.encode() + rng.choice([b"", b"\r\n"])


def messages(rng: random.Random) -> list[Told]:
    values = [*CHANGED, *(bytes([one]) for one in range(256)), *(drawn(rng) for _ in range(300))]
    return [
        (
            drawn(rng) if rng.random() < 0.5 else None,
            value,
            tuple((rng.choice(["", "a", "é"]), drawn(rng)) for _ in range(rng.randrange(3))),
        )
        for value in values
    ]


def told(found: Any) -> Told:
    if isinstance(found, Message):
        return found.key, found.value, found.headers
    key, value = (None if one is None else bytes(one) for one in (found.key, found.value))
    headers = [(one.key, one.value) for one in found.headers or ()]
    return key, value, tuple((k, None if v is None else bytes(v)) for k, v in headers)


@pytest.mark.long
@pytest.mark.parametrize("commit", ["bulk-load", "producer"])
def test_what_was_published_is_read_and_written_byte_for_byte(
    spark: SparkSession, service: str, tmp_path: Path, commit: str
) -> None:
    seed = int(os.environ.get("OCTAVO_SEED", random.randrange(10**6)))
    sent = messages(random.Random(seed))
    source, target = f"bytes-{commit}", f"bytes-back-{commit}"
    with Client(service) as client:
        client.create_topic(source)
        client.create_topic(target)
        with (
            seen_by_readers(service, source, len(sent)),
            client.producer(source, batch_bytes=2_000) as producer,
        ):
            for key, value, headers in sent:
                producer.send(value, key=key, headers=headers, partition=0)
        frame = (
            spark.read.format("octavo")
            .options(service=service, subscribe=source, includeHeaders=True)
            .load()
        )
        rows = sorted(frame.collect(), key=lambda row: row.offset)
        assert [told(row) for row in rows] == sent, f"OCTAVO_SEED={seed}"
        query = (
            spark.readStream.format("octavo")
            .options(service=service, subscribe=source, includeHeaders=True)
            .option("startingOffsets", "earliest")
            .load()
            .select("key", "value", "headers")
            .writeStream.format("octavo")
            .options(service=service, topic=target, commit=commit)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        written = [told(message) for message in client.messages(target)]
    assert sorted(written, key=repr) == sorted(sent, key=repr), f"OCTAVO_SEED={seed}"
