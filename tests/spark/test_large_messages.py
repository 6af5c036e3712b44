"""Large messages in Spark: one row each, copied with their bodies by `replay`, reported by other
jobs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from octavo import Client
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.report import ReportOptions, report
from octavo.pipeline.runner import JobFailed, Run, run_job, selection_of
from octavo.pipeline.verify import verify
from octavo.protocol.large import PIECE_BYTES
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
BODY = random.Random(2).randbytes(5 * PIECE_BYTES + 77)
TIME_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


@pytest.fixture(scope="module")
def films(client: Client, service: str) -> str:
    client.create_topic("films")
    with seen_by_readers(service, "films", 5 + 2 * 6):
        client.publish("films", "a", key="k", timestamp_ms=TIME_MS)
        client.publish_large(
            "films", BODY, key="k", headers={"kind": "film"}, timestamp_ms=TIME_MS + 1
        )
        client.publish("films", "b", key="k", timestamp_ms=TIME_MS + 2)
        client.publish_large("films", BODY[::-1], key="k", timestamp_ms=TIME_MS + 3)
        client.publish("films", "c", key="k", timestamp_ms=TIME_MS + 4)
    return "films"


def found_in(client: Client, topic: str, partition: int = 0) -> list[tuple[Any, ...]]:
    found = []
    for one in client.messages(topic, partition=partition):
        value = one.value if one.large is None else b"".join(client.body(topic, one))
        headers = [header for header in one.headers if header[0] != "octavo-large"]
        found.append((one.timestamp_ms, one.key, headers, value))
    return found


def test_a_large_message_is_one_row_without_its_body(
    spark: SparkSession, service: str, client: Client, films: str
) -> None:
    read = spark.read.format("octavo").options(service=service, subscribe=films)
    rows = read.option("includeHeaders", "true").load().orderBy("offset").collect()
    offsets = [one.offset for one in client.messages(films)]
    assert [row.offset for row in rows] == offsets
    assert [row.value for row in rows] == [b"a", b"", b"b", b"", b"c"]
    assert [row.key for row in rows] == [b"k"] * 5
    headers = {header.key: bytes(header.value) for header in rows[1].headers}
    said = json.loads(headers.pop("octavo-large"))
    assert (said["size"], said["pieces"]) == (len(BODY), 6)
    assert headers == {"kind": b"film"}
    assert rows[0].headers is None


def test_replay_copies_bodies_in_their_order(
    spark: SparkSession, service: str, client: Client, films: str
) -> None:
    client.create_topic("films-again", partitions=3)

    def play(**options: Any) -> dict[str, Any]:
        chosen = ReplayOptions(films, "films-again", **options)
        work = run_job(
            "replay", lambda run: replay(run, chosen), service=service, say=lambda _: None
        )
        return work.summary

    said = play()
    assert (said["rows_read"], said["rows"]) == (5, 5)
    copies = [one for number in range(3) for one in found_in(client, "films-again", number)]
    assert copies == found_in(client, films)
    assert copies[1] == (TIME_MS + 1, b"k", [("kind", b"film")], BODY)
    again = play()
    assert (again["rows"], again["replayed_before"]) == (0, True)
    large = "exists(headers, h -> h.key = 'octavo-large')"
    assert play(where=f"headers IS NULL OR NOT {large}")["rows"] == 3


def test_a_body_is_never_left_behind(
    spark: SparkSession, service: str, client: Client, films: str
) -> None:
    client.create_topic("films-compacted", compaction={})
    chosen = ReplayOptions(films, "films-compacted")
    with pytest.raises(JobFailed, match="compaction would remove a large message's body"):
        run_job("replay", lambda run: replay(run, chosen), service=service, say=lambda _: None)
    assert found_in(client, "films-compacted") == []
    read = spark.read.format("octavo").options(service=service, subscribe=films)
    rows = read.option("includeHeaders", "true").load().select("value", "headers")
    client.create_topic("films-plain")
    writing = rows.write.format("octavo").options(service=service, topic="films-plain")
    with pytest.raises(Exception, match=r"whose body of .* bytes is in no column"):
        writing.mode("append").save()
    assert found_in(client, "films-plain") == []


def test_jobs_that_look_at_a_topic_know_them(
    spark: SparkSession, service: str, films: str, tmp_path: Path
) -> None:
    chosen = selection_of(films)

    def outcome_of(name: str, job: Callable[[Run], Outcome]) -> Outcome:
        return run_job(name, job, service=service, say=lambda _: None)

    verified = outcome_of("verify", lambda run: verify(run, chosen))
    assert verified.findings == []
    assert verified.summary["messages"] == 5 + 2 * 6
    told = outcome_of("report", lambda run: report(run, ReportOptions(chosen, tmp_path / "told")))
    assert told.summary["messages"] == 5
    letters = tmp_path / "letters"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    options = ExportOptions(chosen, str(tmp_path / "out"), schema=schema, bad_rows=str(letters))
    outcome_of("export", lambda run: export(run, options))
    rows = pq.ParquetDataset(letters).read(["offset", "value", "reason"]).to_pylist()
    reasons = {row["offset"]: row["reason"] for row in rows if not row["value"]}
    assert reasons == dict.fromkeys((7, 15), "a large message: its body is not in a column")
    assert len(rows) == 5
