"""The parts of `make bench-peers` that need no other system: figures, table, missing parts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers import __main__ as peers
from bench.peers import fetch, page, table
from bench.peers.contract import KINDS, ROOT, SYSTEMS, WORKLOADS, Bookies, Load, Missing
from bench.peers.figures import Failed, last_json, latencies, steady_rate
from bench.peers.java import SOURCES, Java
from bench.peers.servers import free_ports_in_a_row, run
from octavo.standalone.ports import check_ports


def made(system: str, workload: str, **figures: Any) -> dict[str, Any]:
    return {"system": system, "workload": workload, **figures}


def test_a_row_has_the_median_and_all_rounds() -> None:
    runs = [made("octavo", "produce", per_s=rate, server_us=4.0) for rate in (300, 1_000, 200)]
    assert table.rows(runs)[2:] == ["| produce | octavo | 300/s | 300/s; 1,000/s; 200/s | 4 |"]


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
    assert row.split(" | ")[2:4] == [f"1.00 / 2.00 / 3.50 ms{said}"] * 2


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
        with pytest.raises(Failed, match="must be a JSON object"):
            last_json(said)


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fetch, "CACHE", tmp_path)
    with pytest.raises(Missing, match="`java` is not on the path: Kafka needs Java 17"):
        fetch.jars(fetch.KAFKA)
    with pytest.raises(Missing, match="neither `go` nor `nats-server` is on the path"):
        fetch.nats_server()
    (tmp_path / "java").touch(mode=0o755)
    with pytest.raises(Missing, match="`mvn` is not on the path"):
        fetch.jars(fetch.KAFKA)


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
    monkeypatch.setattr(sys, "argv", ["peers", "--systems", "mosquitto"])
    with pytest.raises(SystemExit):
        peers._options()
    assert (
        "'mosquitto' is none of octavo, kafka-flush, kafka, pulsar, nats, rocketmq"
        in capsys.readouterr().err
    )


def test_warming_up_is_shorter() -> None:
    assert peers._shorter(Load(300_000, 6.0)) == Load(150_000, 2.0)
    assert peers._shorter(Load(1, 1.0)) == Load(1, 1.0)


def test_what_takes_long_is_warmed_up_once() -> None:
    whole = ["produce", "single", "single-5000", "ledger-64k"]
    assert peers._warming(whole, 0) == ["produce", "single-5000", "ledger-64k"]
    assert peers._warming(whole, 1) == ["produce"]
    assert peers._warming(["single"], 0) == ["single"]


def test_every_system_has_its_module() -> None:
    for system in SYSTEMS.values():
        assert (ROOT / "bench/peers" / f"{system.module}.py").exists()


def test_entries_that_are_large_are_shown_in_megabytes_too() -> None:
    runs = [made("bookkeeper", "ledger-64k", per_s=2_000, server_us=9.0)]
    assert "| 2,000/s (131 MB/s) |" in table.rows(runs)[2]
    runs = [made("bookkeeper", "ledger", per_s=2_000, server_us=9.0)]
    assert "| 2,000/s |" in table.rows(runs)[2]


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_a_system_does_not_do_has_a_reason(name: str) -> None:
    system = SYSTEMS[name]
    [kind] = [one for one in KINDS if set(one) & set(system.workloads)]
    assert set(system.workloads) <= set(kind)
    assert bool(system.lacks) == (set(system.workloads) != set(kind))
    assert {one for kind in KINDS for one in kind} == set(WORKLOADS)


class NoServers(Bookies):
    """A cluster that makes nothing and remembers what was dropped."""

    name = "none"
    version = "0"

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def pids(self) -> list[int]:
        return []

    def drop(self, topic: str) -> None:
        self.dropped.append(topic)

    def command(self, workload: str, topic: str, load: Load) -> list[str]:
        code = f'print(\'{{"acked": 2, "per_s": 1, "topic": "{topic}"}}\')'
        return [sys.executable, "-c", code]


def test_systems_take_turns_at_what_they_can_do() -> None:
    cluster = NoServers()
    turns = peers.Turns({"octavo": cluster, "nats": cluster}, ["octavo", "nats"])
    runs: list[dict[str, Any]] = []
    turns.go("round 2", 1, ["produce", "consume", "batches"], Load(5, 1.0), runs)
    assert [(one["workload"], one["system"]) for one in runs] == [
        ("produce", "nats"), ("produce", "octavo"), ("consume", "nats"), ("consume", "octavo"),
        ("batches", "octavo"),
    ]  # fmt: skip
    topics = [one["topic"] for one in runs]
    assert topics[2:4] == topics[:2], "what was produced is consumed"
    assert sorted(cluster.dropped) == sorted(set(topics))


def document(**more: Any) -> dict[str, Any]:
    runs = [
        made("octavo", "produce", per_s=300, server_us=4.0, round="round 1"),
        made("nats", "produce", per_s=200, server_us=4.0, round="round 1"),
    ]
    return {
        "date": "2026-11-24", "cores": 2, "python": "3.11.7", "minutes": 3.0, "others_cores": 0.05,
        "versions": {"octavo": "0.2.0", "nats": "2.15.2"}, "messages": 10, "seconds": 2.0,
        "durability": dict.fromkeys(("octavo", "nats", "pulsar"), ""),
        "missing": {"pulsar": "`java` is not on the path"}, "idle_cores": {"octavo": 0.05},
        "resident_mb": {"octavo": 532.0, "nats": 190.0}, "rounds": runs, **more,
    }  # fmt: skip


def test_the_page_says_when_what_and_what_is_not_there() -> None:
    text = page.text(document(note="a backup ran beside it"))
    assert text.startswith("2026-11-24, 2 cores, Python 3.11.7; nats 2.15.2, octavo 0.2.0; 10 ")
    assert "used 0.05 of a core; a backup ran beside it." in text
    assert "| produce | nats | 200/s | 200/s | 4 |" in text
    assert "Durability: 3 copies, fsync before ack: octavo, pulsar, nats." in text
    assert "at the end, MB: nats 190, octavo 532. Idle, of a core: octavo 0.05." in text
    assert "pulsar is not in the table: `java` is not on the path" in text
    assert "nats has no batches: it sends message by message" in text


def test_an_earlier_run_is_put_between_the_marks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of, at = tmp_path / "run.out", tmp_path / "page.md"
    of.write_text("round 1:\n" + json.dumps(document()) + "\n")
    at.write_text(f"before\n\n{page.BEGIN}\n\nthe last one\n\n{page.END}\n\nafter\n")
    monkeypatch.setattr(sys, "argv", ["peers", "--from", str(of), "--page", str(at)])
    for _ in range(2):  # the second time over the first
        with pytest.raises(SystemExit) as ended:
            peers.main()
        assert ended.value.code == 0
    text = page.text(document())
    assert at.read_text() == f"before\n\n{page.BEGIN}\n\n{text}\n\n{page.END}\n\nafter\n"
    said = capsys.readouterr().out
    assert text in said
    assert last_json(said) == document()


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    at = tmp_path / "page.md"
    for text in ("", page.BEGIN, f"{page.END}\n{page.BEGIN}\n", f"{page.BEGIN}{page.END}" * 2):
        at.write_text(text)
        with pytest.raises(Failed, match="must have a line"):
            page.write(at, "new")
        assert at.read_text() == text


def test_the_performance_page_has_the_marks(tmp_path: Path) -> None:
    copy = tmp_path / "performance.md"
    copy.write_text(page.PAGE.read_text())
    page.write(copy, "new")
    assert f"{page.BEGIN}\n\nnew\n\n{page.END}\n" in copy.read_text()


def test_maven_is_asked_for_each_artifact() -> None:
    pom = fetch.PULSAR.pom()
    assert "<artifactId>pulsar-broker</artifactId><version>4.2.4</version></dependency>" in pom
    assert "<version>4.2.4</version><type>pom</type><scope>import</scope></dependency>" in pom
    assert "dependencyManagement" not in fetch.KAFKA.pom()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = Java(tmp_path, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=r"`javac` is not on the path: LedgerLoad\.java needs a JDK"):
        java.compile("LedgerLoad")


def test_every_java_program_is_compiled_by_somebody() -> None:
    peers_of = "".join(path.read_text() for path in (ROOT / "bench/peers").glob("*_peer.py"))
    compiled = re.findall(r'\.compile\("(\w+)"\)', peers_of)
    assert sorted(compiled) == sorted(path.stem for path in SOURCES.glob("*.java"))


def test_neighbouring_ports_are_free() -> None:
    first = free_ports_in_a_row(3)
    check_ports("127.0.0.1", {str(port): port for port in range(first, first + 3)})
