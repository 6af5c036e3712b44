"""`offload` by Spark on a live cluster: real bookies and brokers, read over HTTP afterwards."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from octavo import Client
from octavo.pipeline.offload import OffloadOptions, offload
from octavo.pipeline.offload_rules import OffloadPolicy
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.runner import run_job
from octavo.spark.options import Selection
from tests.spark.test_source import publish, value_of
from tests.support.processes.standalone import octavo, until
from tests.support.spark_place import reader_of, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
TOPIC = "public/cold"


@pytest.mark.usefixtures("spark")
def test_offloaded_by_spark_and_read_over_http(
    spark: SparkSession, service: str, tmp_path: Path
) -> None:
    def run(policy: OffloadPolicy) -> Outcome:
        options = OffloadOptions(Selection(topics=(TOPIC,)), tmp_path.as_uri(), policy, 50e6)
        return run_job("offload", partial(offload, options=options), service=service, say=print)

    with Client(service) as client:
        client.create_topic("cold", rollover={"entries": 4})
        for first in range(0, 400, 100):
            publish(client, service, "cold", range(first, first + 100))
        subscription = client.subscribe("cold", "s", start="earliest")
        copied = run(OffloadPolicy())
        assert copied.exit is Exit.OK
        assert copied.summary["copied_ledgers"] > 1
        dropped = run(OffloadPolicy(drop_lag_ms=0))
        assert dropped.summary["dropped_ledgers"] == copied.summary["copied_ledgers"]
        stored = [bytes(message.value or b"") for message in client.messages("cold")]
        assert stored == [value_of(number) for number in range(400)]
        got: list[bytes] = []

        def took_all() -> bool:
            found = subscription.receive()
            got.extend(bytes(one.value or b"") for one in found)
            subscription.ack(found)
            return len(got) >= 400

        until(took_all, "all deliveries", 400)
        assert got == stored
    rows = spark.read.format("octavo").options(service=service, subscribe="cold").load()
    assert sorted(row.value for row in rows.select("value").collect()) == stored
    reader = reader_of(service, subscribe="cold", readFrom="offload")
    found = [some for split in reader.partitions() for some in reader.read(split)]  # type: ignore[arg-type]
    assert sorted(values_of(found)) == [value.decode() for value in stored]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give the target folder"),
        (("--to", "tape://1"), "--to tape://1: tape://1: not a place for objects"),
        (("--to", "out", "--all", "cold"), "not both"),
    ],
)
def test_usage_is_told_without_spark(service: str, arguments: tuple[str, ...], said: str) -> None:
    topics = () if "--all" in arguments else ("cold",)
    done = octavo("pipeline", "offload", *topics, "--url", service, *arguments)
    assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_a_dry_run_as_json(service: str, tmp_path: Path) -> None:
    with Client(service) as client:
        client.create_topic("dry")
    done = octavo(
        "pipeline", "offload", "dry", "--to", str(tmp_path), "--dry-run", "--json", "--url",
        service, timeout_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["job"], found["result"]) == ("offload", "ok")
    assert found["summary"]["would_copy"] == []
    assert list(tmp_path.iterdir()) == []
