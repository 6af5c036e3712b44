"""The parts of `make bench-peers` that need no other system: figures, table, what is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers import __main__ as peers
from bench.peers import fetch, table
from bench.peers.contract import ROOT, SYSTEMS, Load, Missing
from bench.peers.figures import Failed, last_json, latencies, steady_rate
from bench.peers.servers import run


def made(system: str, workload: str, **figures: Any) -> dict[str, Any]:
    return {"system": system, "workload": workload, **figures}


def test_a_row_has_the_median_and_all_rounds() -> None:
    runs = [made("octavo", "produce", per_s=rate, server_us=4.0) for rate in (300, 1_000, 200)]
    assert table.rows(runs)[2:] == [
        "| produce | octavo | 3 copies, fsync before ack | 300/s | 300/s; 1,000/s; 200/s | 4 |"
    ]


def test_a_failed_round_is_shown_and_not_counted() -> None:
    runs = [
        made("nats", "produce", per_s=10, server_us=1.0),
        made("nats", "produce", failed="ended with 1: out of memory"),
        made("kafka", "consume", failed="not done after 180 s"),
    ]
    nats, kafka = table.rows(runs)[2:]
    assert "| 10/s | 10/s; failed | 1 |" in nats
    assert "| – | failed | – |" in kafka
    assert table.all_medians(runs) == {"produce": {"nats": {"per_s": 10, "server_us": 1.0}}}


@pytest.mark.parametrize(("held", "said"), [(999, ""), (700, " (held 700/s)")])
def test_a_rate_that_was_not_held_is_told(held: int, said: str) -> None:
    figures = {"p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 3.5, "held": held, "server_us": 1.0}
    row = table.rows([made("kafka", "single", **figures)])[2]
    assert row.split(" | ")[3:5] == [f"1.00 / 2.00 / 3.50 ms{said}"] * 2


def test_a_line_says_what_failed() -> None:
    assert table.line(made("kafka", "consume", failed="why")).endswith("FAILED: why")


def test_latencies_are_nearest_ranks_in_ms() -> None:
    took_s = [number / 1000 for number in range(1000, 0, -1)]
    assert latencies(took_s) == {"p50_ms": 501, "p99_ms": 991, "p999_ms": 1000, "max_ms": 1000}
    assert latencies([0.0015]) == dict.fromkeys(("p50_ms", "p99_ms", "p999_ms", "max_ms"), 1.5)


def test_the_steady_rate_is_the_last_one() -> None:
    said = (
        "100 records sent, 20.0 records/sec (0.1 MB/sec), 3 ms avg latency\n"
        "400 records sent, 153.6 records/sec (1.2 MB/sec), 2 ms avg latency\n"
    )
    assert steady_rate(said) == 154
    with pytest.raises(Failed, match="no rate"):
        steady_rate("nothing")


def test_a_client_ends_with_an_object() -> None:
    assert last_json('warming\n{"acked": 3}\n') == {"acked": 3}
    for said in ("", "no", "3"):
        with pytest.raises(Failed, match="no JSON object"):
            last_json(said)


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fetch, "CACHE", tmp_path)
    with pytest.raises(Missing, match="`java` is not on the path: Kafka needs Java 17"):
        fetch.kafka_jars()
    with pytest.raises(Missing, match="neither `go` nor `nats-server` is on the path"):
        fetch.nats_server()
    (tmp_path / "java").touch(mode=0o755)
    with pytest.raises(Missing, match="`mvn` is not on the path"):
        fetch.kafka_jars()


def test_a_server_on_the_path_does_without_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nats-server").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fetch, "CACHE", tmp_path / "cache")
    assert fetch.nats_server() == tmp_path / "nats-server"


def test_a_client_that_fails_or_hangs_says_so() -> None:
    code = "import sys; print('first', file=sys.stderr); sys.exit('the reason')"
    with pytest.raises(Failed, match="ended with 1: the reason"):
        run([sys.executable, "-c", code], 30)
    with pytest.raises(Failed, match="not done after 0 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)


def test_systems_are_named_in_any_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", "--systems", "kafka,octavo"])
    assert peers._options().systems == ["octavo", "kafka"]
    monkeypatch.setattr(sys, "argv", ["peers", "--systems", "pulsar"])
    with pytest.raises(SystemExit):
        peers._options()
    assert "'pulsar' is none of octavo, kafka-flush, kafka, nats" in capsys.readouterr().err


def test_warming_up_is_shorter() -> None:
    assert peers._shorter(Load(300_000, 6.0)) == Load(150_000, 3.0)
    assert peers._shorter(Load(1, 1.0)) == Load(1, 1.0)


def test_every_system_has_its_module() -> None:
    for system in SYSTEMS.values():
        assert (ROOT / "bench/peers" / f"{system.module}.py").exists()
