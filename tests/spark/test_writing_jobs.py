"""`ingest` and `replay` on a live cluster: each row once, whatever is repeated; also submitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from octavo import Client
from octavo.pipeline.ingest import IngestOptions, Shape, ingest
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.replay import ReplayOptions, replay
from octavo.pipeline.runner import BadUsage, JobFailed, Run, run_job
from octavo.protocol.records import partition_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
Job = Callable[[Callable[[Run], Outcome]], dict[str, Any]]
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        yield found


@pytest.fixture(scope="module")
def job(spark: SparkSession, service: str) -> Job:
    def of(work: Callable[[Run], Outcome]) -> dict[str, Any]:
        return run_job("writing", work, service=service, say=lambda _: None).summary

    return of


@pytest.fixture(scope="module")
def rows_of(spark: SparkSession, service: str) -> Callable[[str], list[Any]]:
    def of(topic: str) -> list[Any]:
        read = spark.read.format("octavo").options(service=service, subscribe=topic)
        return read.option("includeHeaders", "true").load().orderBy("partition", "offset").collect()

    return of


def write_csv(path: Path, numbers: range) -> None:
    lines = [f'{number},"tail, {number % 7}",{START_MS + number}' for number in numbers]
    path.write_text("\n".join(["n,tail,at", *lines]) + "\n")


def test_a_folder_that_grows_is_ingested_file_by_file(
    job: Job, rows_of: Callable[[str], list[Any]], client: Client, tmp_path: Path
) -> None:
    client.create_topic("ingested", partitions=3)
    shape = Shape(schema="n INT, tail STRING, at LONG", key="tail", timestamp="at", order_by="n")
    options = IngestOptions((str(tmp_path / "in"),), "ingested", shape)
    (tmp_path / "in" / "_hidden").mkdir(parents=True)
    write_csv(tmp_path / "in" / "a.csv", range(60))
    write_csv(tmp_path / "in" / "_hidden" / "x.csv", range(5))
    assert job(lambda run: ingest(run, options))["rows"] == 60
    write_csv(tmp_path / "in" / "b.csv", range(60, 100))
    again = job(lambda run: ingest(run, options))
    assert (again["files"], again["files_ingested_before"], again["rows"]) == (1, 1, 40)
    rows = rows_of("ingested")
    assert sorted(json.loads(row.value)["n"] for row in rows) == list(range(100))
    for row in rows:
        found = json.loads(row.value)
        assert found == {"n": found["n"], "tail": f"tail, {found['n'] % 7}", "at": found["at"]}
        assert row.key == found["tail"].encode()
        assert row.partition == partition_for(row.key, 3)
        assert round(row.timestamp.timestamp() * 1000) == START_MS + found["n"] == found["at"]
    for number in range(3):
        mine = [json.loads(row.value)["n"] for row in rows if row.partition == number]
        assert mine == sorted(mine)


def test_parquet_and_json_under_a_name_of_their_own(
    job: Job, rows_of: Callable[[str], list[Any]], client: Client, tmp_path: Path
) -> None:
    client.create_topic("named")
    table = pa.table({"a.b": [1, 2, None], "v": [b"x", None, b"\xff"]})
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "l.jsonl").write_text('{"v": "one", "w": [1]}\n{"v": null}\n')

    def into(path: str, bulk_load: str | None, dry_run: bool = False, **shape: Any) -> int:
        options = IngestOptions(
            (str(tmp_path / path),), "named", Shape(**shape), bulk_load, dry_run
        )
        return int(job(lambda run: ingest(run, options))["rows"])

    assert into("t.parquet", None, dry_run=True) == 3
    assert into("t.parquet", "mine", value="v", key="a.b") == 3
    assert into("l.jsonl", "mine") == 0, "the name was used"
    assert into("l.jsonl", None) == 2
    found = Counter((row.key, row.value) for row in rows_of("named"))
    assert found == {
        (b"1", b"x"): 1,
        (b"2", None): 1,
        (None, b"\xff"): 1,
        (None, b'{"v":"one","w":[1]}'): 1,
        (None, b'{"v":null,"w":null}'): 1,
    }


def test_what_cannot_be_ingested_is_said_and_nothing_is_written(
    job: Job, rows_of: Callable[[str], list[Any]], client: Client, tmp_path: Path
) -> None:
    client.create_topic("refused")
    (tmp_path / "bad.csv").write_text("n\n1\ntwo\n")
    (tmp_path / "data.bin").write_text("x")

    def into(path: str, topic: str = "refused", **shape: Any) -> Any:
        options = IngestOptions((str(tmp_path / path),), topic, Shape(**shape))
        return job(lambda run: ingest(run, options))

    for wrong, said in [
        (lambda: into("none.csv"), "there is no such file"),
        (lambda: into("bad.csv", "nowhere"), "create it with: octavo topic create nowhere"),
        (lambda: into("bad.csv", key="m"), "there is no column m in .* its columns are n"),
        (lambda: into("data.bin"), "unknown format"),
        (lambda: into("bad.csv", schema="n BOOLEAN", timestamp="n"), "is a boolean column"),
    ]:
        with pytest.raises(BadUsage, match=said):
            wrong()
    with pytest.raises(JobFailed):
        into("bad.csv", schema="n INT")
    assert rows_of("refused") == []


def test_a_range_is_replayed_once_and_in_order(
    job: Job, rows_of: Callable[[str], list[Any]], client: Client, service: str, tmp_path: Path
) -> None:
    client.create_topic("played", partitions=2)
    client.create_topic("replayed", partitions=3)
    client.create_topic("kept-places", partitions=2)
    client.create_topic("narrow")
    rows = [f'{{"n": {number}, "k": "k{number % 5}"}}' for number in range(120)]
    (tmp_path / "rows.json").write_text("\n".join(rows))
    shape = Shape(key="k", order_by="n")
    job(lambda run: ingest(run, IngestOptions((str(tmp_path / "rows.json"),), "played", shape)))
    source = rows_of("played")

    def play(target: str, **options: Any) -> dict[str, Any]:
        return job(lambda run: replay(run, ReplayOptions("played", target, **options)))

    bounds = {"startingOffsets": '{"played": {"0": 10}}'}
    where = "cast(key AS STRING) <> 'k3'"
    expected = [
        row for row in source if not (row.partition == 0 and row.offset < 10) and row.key != b"k3"
    ]
    dry = play("replayed", bounds=bounds, where=where, dry_run=True)
    assert (dry["rows"], rows_of("replayed")) == (len(expected), [])
    assert play("replayed", bounds=bounds, where=where)["rows"] == len(expected)
    again = play("replayed", bounds=bounds, where=where)
    assert (again["rows"], again["replayed_before"]) == (0, True)
    found = rows_of("replayed")
    for key in {row.key for row in source}:
        mine = [(row.value, row.timestamp) for row in found if row.key == key]
        assert mine == [(row.value, row.timestamp) for row in expected if row.key == key]
    play("kept-places", keep_partitions=True)
    assert [(row.partition, row.value) for row in rows_of("kept-places")] == [
        (row.partition, row.value) for row in source
    ]
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("played", {}, "is source and target"),
        ("replayed", {"where": "nix > 1"}, "--where nix > 1: .*nix"),
        ("narrow", {"keep_partitions": True}, "has 2 partitions, but public/narrow has only 1"),
    ]
    for target, options, said in wrong:
        with pytest.raises(BadUsage, match=said):
            play(target, **options)


def test_submitted_to_spark(client: Client, service: str, tmp_path: Path) -> None:
    """As on a cluster: `spark-submit` sets master and settings, the job its arguments."""
    import pyspark

    import octavo.pipeline

    client.create_topic("submitted")
    write_csv(tmp_path / "a.csv", range(10))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    main = Path(octavo.pipeline.__file__).parent / "__main__.py"
    settings = ["--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    arguments = ["ingest", str(tmp_path / "a.csv"), "--topic", "submitted", "--url", service]
    done = subprocess.run(
        [str(submit), *settings, str(main), *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["result"], found["summary"]["rows"]) == ("ok", 10)
