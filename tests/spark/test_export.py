"""`export` on a live cluster: each message once, typed rows, bad rows in each of three ways."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from octavo import Client
from octavo.pipeline.export import ExportOptions, export
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.runner import BadUsage, run_job, selection_of
from tests.support.processes.standalone import OCTAVO, environment, until
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SCHEMA = {
    "type": "object",
    "required": ["n"],
    "properties": {
        "n": {"type": "integer", "minimum": 0},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "dep. delay": {"type": ["number", "null"]},
    },
}
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def client(service: str) -> Iterator[Client]:
    with Client(service) as found:
        found.create_topic("typed")
        yield found


Export = Callable[..., Outcome]


@pytest.fixture(scope="module")
def exported(spark: SparkSession, service: str) -> Export:
    def of(topic: str, out: Path, **options: Any) -> Outcome:
        what = ExportOptions(selection=selection_of(topic), out=str(out), **options)
        return run_job("export", lambda run: export(run, what), service=service, say=lambda _: None)

    return of


def publish(client: Client, service: str, topic: str, values: list[Any]) -> None:
    with (
        seen_by_readers(service, topic, len(values)),
        client.producer(topic, batch_bytes=400) as producer,
    ):
        for number, value in enumerate(values):
            producer.send(value, key=f"k{number}", timestamp_ms=START_MS + number)


def rows_in(out: Path) -> list[dict[str, Any]]:
    files = sorted(out.glob("export_batch=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_a_repeated_run_adds_what_is_new(
    exported: Export, client: Client, service: str, tmp_path: Path
) -> None:
    client.create_topic("raw", partitions=2)
    out = tmp_path / "out"
    publish(client, service, "raw", [b"%d" % number for number in range(40)])
    first = exported("raw", out, rows_per_batch=25)
    assert (first.exit, first.summary["rows"], first.summary["batches"]) == (Exit.OK, 40, 2)
    publish(client, service, "raw", [b"%d" % number for number in range(40, 50)])
    assert exported("raw", out).summary["rows"] == 10
    rows = rows_in(out)
    assert sorted(int(row["value"]) for row in rows) == list(range(50))
    assert {row["topic"] for row in rows} == {"raw"}
    with pytest.raises(BadUsage, match=r"holds an export of \['public/raw'\]"):
        exported("typed", out)
    (out / "_checkpoint").rename(tmp_path / "moved")
    with pytest.raises(BadUsage, match="would overwrite it"):
        exported("raw", out)


def test_bad_rows_suspend_and_then_go_to_dead_letters(
    exported: Export, client: Client, service: str, tmp_path: Path
) -> None:
    good = [{"n": n, "at": "2024-01-01T02:00:00+02:00", "dep. delay": 1.5} for n in range(20)]
    publish(client, service, "typed", [json.dumps(one).encode() for one in good])
    out, letters = tmp_path / "out", tmp_path / "letters"
    assert exported("typed", out, schema=SCHEMA).exit is Exit.OK
    publish(client, service, "typed", [b'{"n": "7"}', b'{"n": 20, "tags": ["a"]}', b"{"])

    dry = exported("typed", out, schema=SCHEMA, dry_run=True)
    assert (dry.summary["rows"], dry.summary["bad_rows"]) == (21, 2)

    stopped = exported("typed", out, schema=SCHEMA)
    assert stopped.summary["suspended"]
    assert (stopped.exit, stopped.summary["rows"]) == (Exit.FINDINGS, 0)
    assert "public/typed/0 offset 20" in {one.where for one in stopped.findings}
    assert "Expected `int`, got `str` - at `$.n`" in {one.what for one in stopped.findings}
    assert len(rows_in(out)) == 20, "nothing of a suspended batch is written"

    rest = exported("typed", out, schema=SCHEMA, bad_rows=str(letters))
    assert (rest.summary["rows"], rest.summary["bad_rows"]) == (1, 2)
    rows = sorted(rows_in(out), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == list(range(21))
    assert rows[3]["dep. delay"] == 1.5
    assert rows[3]["at"].isoformat() == "2024-01-01T00:00:00+00:00"
    assert (rows[20]["tags"], rows[20]["at"], rows[20]["_offset"]) == (["a"], None, 21)
    assert {(row["offset"], row["value"]) for row in rows_in(letters)} == {
        (20, b'{"n": "7"}'),
        (22, b"{"),
    }


def test_interrupted_it_says_how_far_it_came_and_goes_on_there(
    exported: Export, client: Client, service: str, tmp_path: Path
) -> None:
    """Ctrl-C goes to all processes of a terminal."""
    client.create_topic("long", partitions=2)
    publish(client, service, "long", [b"%d" % number for number in range(200)])
    out = tmp_path / "out"
    command = ["pipeline", "export", "long", "--out", str(out), "--rows-per-batch", "2"]
    job = subprocess.Popen(
        [*OCTAVO, *command, "--url", service, "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: len(list(out.glob("export_batch=*/_SUCCESS"))) > 2, "batches", 400)
        os.killpg(job.pid, signal.SIGINT)
        said, told = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode == 130, told
    found = json.loads(said)
    assert found["result"] == "interrupted"
    assert 0 < found["summary"]["rows"] < 200
    assert "Traceback" not in told
    assert exported("long", out).exit is Exit.OK
    assert sorted(int(row["value"]) for row in rows_in(out)) == list(range(200))
