"""Tools around the tests: benchmarks, attacks, persist steps, failed tests."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers import __main__ as peers
from bench.peers import fetch, page, table
from bench.peers.contract import KINDS, ROOT, SYSTEMS, WORKLOADS, Bookies, Load, Missing
from bench.peers.figures import Failed, last_json, latencies, steady_rate
from bench.peers.java import SOURCES, Java
from bench.peers.servers import free_ports_in_a_row, run
from bench.program import arguments, end, or_zero, rates, several
from octavo.bookie.disk.files import Disk, File, RealDisk
from octavo.bookie.index.index import LedgerIndex
from octavo.process.spec import ProcessSpec
from octavo.standalone.ports import check_ports
from tests.attack.canary import PACE_S, waited_of, wanted_in
from tests.attack.memory import MIB, Peaks, bound_of
from tests.attack.timed import FOLDER, Turns
from tests.support.failed_again import selected
from tests.support.loop_time import LoopTime
from tests.support.memory_disk import MemoryDisk
from tests.support.memory_index import MemoryIndex
from tests.support.processes.failpoints import BOOKIE_FAILPOINTS, FIRST_START_FAILPOINTS
from tests.support.processes.seams import OCTAVO_KINDS, FailDisk, FailFile, FailIndex, kind_of
from tests.support.raw_bookie import RawClient, adds_of, running_bookie


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


# Common features of the programs of bench/: a help with examples, and JSON at the end.
BENCH = Path(__file__).resolve().parents[2] / "bench"
PROGRAMS = [
    path
    for path in sorted(BENCH.glob("*.py"))
    if path.stem != "program" and "arguments(__doc__)" in path.read_text()
]


def test_all_figures_of_the_page_have_a_program() -> None:
    kinds = {path.stem.split("_")[0] for path in PROGRAMS}
    assert {f"b{number}" for number in range(1, 17)} <= kinds


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_shows_how_it_is_called(path: Path) -> None:
    text = path.read_text()
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert f"python -m bench.{path.stem}" in doc
    assert "end(" in text, "its last line is its document"


def test_the_document_is_the_last_line_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = arguments("What it does.\n\n    python -m bench.it   # an example")
    assert "\n    python -m bench.it   # an example" in parser.format_help()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job")
    options = parser.parse_args(["--json", str(tmp_path / "it.json")])
    end(options, "it", found=[1.5])
    said = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "it.json").read_text()) == said
    assert (said["bench"], said["settings"], said["found"]) == ("it", {"rounds": 3}, [1.5])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--rounds", "0"], "argument --rounds: 0 is not above 0"),
        (["--rounds", "x"], "argument --rounds: invalid int value: 'x'"),
        (["--seconds", "-1"], "argument --seconds: -1 is not above 0"),
        (["--seconds", "nan"], "argument --seconds: nan is not above 0"),
        (["--spare", "-1"], "argument --spare: -1 is below 0"),
        (["--kinds", "a,c"], "argument --kinds: 'c' is none of a, b"),
        (["--rates", "5,,6"], "argument --rates: '5,,6' is not numbers with commas"),
        (["--rates", "5,0"], "argument --rates: 0 is not above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = arguments("What it does.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--spare", type=or_zero, default=0)
    parser.add_argument("--kinds", type=several(("a", "b")), default=["a"])
    parser.add_argument("--rates", type=rates, default="1,2.5")
    right = parser.parse_args(["--spare", "0", "--kinds", "b,a"])
    assert (right.spare, right.kinds, right.rates) == (0, ["b", "a"], [1.0, 2.5])
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


# The memory of a process in `make attack` equals the system's figure.
MORE = 64 * MIB


@pytest.fixture
def peaks(tmp_path: Path) -> Peaks:
    (tmp_path / "conf").mkdir()
    sections = {"broker": {"broker_id": "broker-1", "tail_cache_bytes_max": 16 * MIB}, "http": {}}
    spec = ProcessSpec(name="broker-1", metadata_url="", sections=sections)
    spec.write(tmp_path / "conf" / "broker-1.json")
    small = {**sections, "broker": {"broker_id": "broker-1", "tail_cache_bytes_max": 8 * MIB}}
    ProcessSpec(name="less", metadata_url="", sections=small).write(tmp_path / "conf" / "less.json")
    found = Peaks(tmp_path, {"broker-1": os.getpid()})
    less = bound_of(tmp_path / "conf" / "less.json")
    assert found.highest["broker-1"].bound == less + 8 * MIB
    return found


@pytest.fixture
def other() -> Iterator[tuple[int, Callable[[str], None]]]:
    """A process that only follows orders, since this one has run other tests."""
    loop = "import sys\nfor line in sys.stdin:\n    exec(line)\n    print(flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    said, answers = child.stdin, child.stdout

    def tell(line: str) -> None:
        said.write(line + "\n")
        said.flush()
        answers.readline()

    with child:
        tell("pass")
        yield child.pid, tell
        said.close()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks /proc")
def test_an_attempt_has_the_peak_of_its_own_time(
    tmp_path: Path, peaks: Peaks, other: tuple[int, Callable[[str], None]]
) -> None:
    pid, tell = other
    peaks = Peaks(tmp_path, {"broker-1": pid})
    peaks.begin()
    tell(f"held = b'x' * {MORE}")
    assert peaks.end("the first") == []
    first = peaks.highest["broker-1"].bytes
    tell("del held")
    peaks.begin()
    assert peaks.end("the second") == []
    assert peaks.highest["broker-1"].bytes == first
    assert "in: the first" in peaks.report()[0]
    peaks.highest["broker-1"].bytes = 0
    assert peaks.end("the third") == []
    assert peaks.highest["broker-1"].bytes < first - MORE // 2, "what was before does not count"


def test_more_than_the_bound_is_told(peaks: Peaks) -> None:
    peaks.highest["broker-1"].bound = MIB
    assert "its bound is 1" in peaks.end("any")[0]


# The measurement of loop turns in attacks finds the long turns.
def _busy(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


async def test_a_busy_turn_is_measured_and_a_sleeping_one_is_not() -> None:
    async with LoopTime() as measured:
        await asyncio.sleep(0.02)
        _busy(0.06)
    assert measured.longest_s >= 0.06
    async with LoopTime() as measured:
        await asyncio.sleep(0.02)
        time.sleep(0.06)  # noqa: ASYNC251  (the loop stands, and no processor time is spent)
    assert measured.longest_s < 0.05


def test_the_longest_turn_is_found(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "broker-1").write_text("[1.0, 9.0, 0]\n[5.0, 0.03, 0]\n[6.0, 0.3")
    (tmp_path / FOLDER / "broker-2").write_text("[5.5, 0.07, 0.05]\n")
    (tmp_path / FOLDER / "bookie-1").write_text("[5.5, 0.9, 0]\n")
    turn = Turns(tmp_path).longest(2.0, "broker")
    assert turn is not None
    assert (turn.process, turn.processor_s) == ("broker-2", 0.07)
    assert Turns(tmp_path).longest(7.0, "broker") is None


def test_time_without_a_processor_is_no_harm() -> None:
    """A canary's bound judges what the cluster did with the processor time that it got."""
    assert wanted_in(10.0, 0.0, 0.5) == 0.5 * 10.0 / PACE_S
    assert wanted_in(10.0, 8.0, 0.5) == pytest.approx(0.5 * 2.0 / PACE_S)
    assert wanted_in(10.0, 12.0, 0.5) == 0.0
    assert waited_of(2**31) == 0.0  # no such process


def test_how_long_a_process_waited_for_a_processor_only_grows() -> None:
    before = waited_of(os.getpid())
    time.sleep(0.01)
    assert waited_of(os.getpid()) >= before >= 0.0


# `make test-failed` runs what failed, and nothing else.
TESTS = """
import pytest

@pytest.mark.xdist_group("shared")
def test_fails():
    assert not "broken"

def test_passes():
    pass
"""


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("tests/a.py::test_it", "tests/a.py::test_it"),
        ("tests/spark/a.py::test_it@spark", "tests/spark/a.py::test_it"),
        ("tests/spark/a.py::test_it[x@y]@spark", "tests/spark/a.py::test_it[x@y]"),
        ("tests/a.py::test_it[x@y]", "tests/a.py::test_it[x@y]"),
    ],
)
def test_names_without_groups(name: str, asked: str) -> None:
    assert selected([name]) == [asked]


def test_a_failed_test_of_a_group_is_found_again(tmp_path: Path) -> None:
    """pytest's own `--last-failed` ran all 17,000 tests when a test of the containers failed, and
    CI's 90 minutes were over."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        ).stdout

    first = run("-m", "pytest", "-n1", "--dist=loadgroup")
    assert "1 failed, 1 passed" in first
    again = run("-m", "tests.support.failed_again")
    assert "1 failed in" in again, again


# The tests that kill processes know each file of a bookie and each kind of record.
FOLDERS = sorted(
    {
        found
        for part in ("metadata", "bookie", "broker", "octavo/security")
        for path in (ROOT / part).rglob("*.py")
        for found in re.findall(r'^\w+ = "/octavo/([a-z-]+)', path.read_text(), re.MULTILINE)
    }
)
_KINDS = {name.partition(".")[0] for name in (*BOOKIE_FAILPOINTS, *FIRST_START_FAILPOINTS)}
_BESIDE_THE_DISK = ("index", "LOCK")
"""RocksDB's own writes, and the lock of a folder."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_of_records_has_a_kind(folder: str) -> None:
    assert folder == "topics" or folder in OCTAVO_KINDS


async def test_each_file_of_a_bookie_has_a_kind_with_failpoints(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as node:
        client = await RawClient.connect(node)
        client.send(adds_of(1, range(10)))
        assert len(await client.acked(10)) == 10
        client.close()
    config = node.config
    found = _kinds_below(*config.journal_directories, *config.ledger_directories)
    assert {"journal", "high-water", "cookie", "log"} <= found
    assert found <= _KINDS


def _kinds_below(*folders: str) -> set[str]:
    return {
        kind_of(str(path))
        for folder in folders
        for path in Path(folder).rglob("*")
        if path.is_file() and not any(one in _BESIDE_THE_DISK for one in path.parts)
    }


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_what_wraps_a_seam_has_all_that_the_seam_has() -> None:
    """A new call of a seam must be in its wrapper as well."""
    armed: Any = None
    index: Any = MemoryIndex()
    assert _public(Disk) <= set(dir(FailDisk(RealDisk(), armed)))
    assert _public(File) <= set(dir(FailFile(MemoryDisk().open("/a", create=True), "log", armed)))
    assert _public(LedgerIndex) <= set(dir(FailIndex(index, armed)))
