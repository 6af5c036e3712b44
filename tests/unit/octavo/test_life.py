"""A process: imports, garbage collections, a stuck loop, its end; a standalone cluster's parts."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import run
from octavo.cli.standalone import _announce
from octavo.cli.tree import COMMANDS, Commands
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import SessionExpired
from octavo.process import life as life_module
from octavo.process.garbage import FEW, ShortCollections
from octavo.process.life import Life, allow_open_files, run_process
from octavo.process.loop_watch import EXIT_CODE, LoopWatch
from octavo.process.spec import ProcessSpec
from octavo.protocol.codes import OctavoError
from octavo.standalone import ports
from octavo.standalone.child import Child, ChildFailed
from octavo.standalone.cluster_file import ClusterFile, Member, NoCluster, alive, read_cluster
from octavo.standalone.supervisor import STARTS_MAX, Plan, Supervisor


@pytest.fixture
def spec(tmp_path: Path) -> ProcessSpec:
    return ProcessSpec(
        name="bookie-9",
        metadata_url="file:///m",
        log_file=str(tmp_path / "log"),
        sections={"bookie": {}},
    )


def events(spec: ProcessSpec) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(spec.log_file).read_text().splitlines()]


def pair() -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    return ours, theirs.detach()


async def serve(_spec: ProcessSpec, life: Life) -> None:
    life.ready(address="here:1")
    await life.until_stopped()


def test_sigterm_is_a_good_end(spec: ProcessSpec) -> None:
    async def main(spec: ProcessSpec, life: Life) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await serve(spec, life)

    ours, theirs = pair()
    assert run_process(main, spec, theirs) == 0
    said = json.loads(ours.recv(4096))
    assert said["event"] == "ready"
    assert said["address"] == "here:1"
    assert said["pid"] == os.getpid()
    found = events(spec)
    assert [one["event"] for one in found] == ["stopping", "stopped"]
    assert found[0]["reason"] == "SIGTERM"
    assert (found[0]["service"], found[0]["node"]) == ("bookie", "bookie-9")
    ours.close()


def test_it_stops_when_the_supervisor_is_gone(spec: ProcessSpec) -> None:
    ours, theirs = pair()

    async def main(spec: ProcessSpec, life: Life) -> None:
        asyncio.get_running_loop().call_soon(ours.close)
        await serve(spec, life)

    assert run_process(main, spec, theirs) == 0
    assert events(spec)[0]["reason"] == "the supervisor is gone"


@pytest.mark.parametrize(
    ("error", "reason", "traced"),
    [
        (OctavoError("the disk is full"), "the disk is full", False),
        (OSError(13, "Permission denied", "/x"), "[Errno 13] Permission denied: '/x'", False),
        (KeyError("x"), "KeyError: 'x'", True),
    ],
)
def test_a_failure_is_told_to_log_and_supervisor(
    spec: ProcessSpec, error: Exception, reason: str, traced: bool
) -> None:
    async def main(spec: ProcessSpec, life: Life) -> None:
        raise error

    ours, theirs = pair()
    assert run_process(main, spec, theirs) == 1
    assert json.loads(ours.recv(4096)) == {
        "event": "failed",
        "reason": reason,
        "lost_session": False,
    }
    (last,) = events(spec)
    assert (last["event"], last["reason"]) == ("process_failed", reason)
    assert ("trace" in last) == traced
    ours.close()


def test_a_lost_session_is_told_with_what_helps(spec: ProcessSpec) -> None:
    """A supervisor may start the process again; a person reads why, and which setting matters."""

    async def lose(_spec: ProcessSpec, _life: Life) -> None:
        raise SessionExpired("the session in which this call to file:///m began is over")

    ours, fd = pair()
    assert run_process(lose, spec, fd) == 1
    told = json.loads(ours.recv(4096))
    assert (told["event"], told["lost_session"]) == ("failed", True)
    assert "session_timeout_ms" in told["reason"]
    assert events(spec)[-1]["reason"] == told["reason"]


def test_a_failure_while_serving_ends_it(spec: ProcessSpec) -> None:
    stopped = []

    async def main(spec: ProcessSpec, life: Life) -> None:
        life.ready()
        asyncio.get_running_loop().call_soon(life.fail, OctavoError("fsync failed"))
        try:
            await life.until_stopped()
        finally:
            stopped.append(True)

    assert run_process(main, spec) == 1
    assert stopped
    assert events(spec)[-1]["reason"] == "fsync failed"


def test_a_stop_while_it_starts(spec: ProcessSpec) -> None:
    async def main(spec: ProcessSpec, life: Life) -> None:
        life.stop("asked")
        await asyncio.Event().wait()

    assert run_process(main, spec) == 0


def test_a_stop_that_takes_too_long(spec: ProcessSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "STOP_TIMEOUT_S", 0.05)

    async def main(spec: ProcessSpec, life: Life) -> None:
        life.ready()
        life.stop("asked")
        await asyncio.Event().wait()

    assert run_process(main, spec) == 2
    assert "did not stop within" in str(events(spec)[-1]["reason"])


def test_it_takes_what_the_system_allows() -> None:
    """A bookie kept a shell's limit of 1,024 open files, and had no descriptor left for its
    next journal file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# A loop that stands still ends its process; a slow loop does not.
def block_until(happened: threading.Event) -> None:
    assert happened.wait(30)


async def test_a_loop_that_stands_still_ends_the_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    watch = LoopWatch(turns_max=3, turn_s=0.01, end=end)
    watch.start()
    block_until(ended)
    assert codes == [EXIT_CODE]
    said = capsys.readouterr()
    assert "block_until" in said.out + said.err, "it says where the loop stood"


async def test_a_loop_that_turns_is_left_alone() -> None:
    watch = LoopWatch(turns_max=1_000_000, turn_s=0.001, end=lambda code: pytest.fail("ended"))
    watch.start()
    beats = 0
    while beats < 20:
        if watch._alive.is_set():
            beats += 1
        await asyncio.sleep(0.001)
    watch.stop()
    watch._thread.join(10)
    assert not watch._thread.is_alive()


# Python's garbage collections stay short, and cyclic garbage is collected in the end.
AT_START = 4 * FEW


class Heap:
    """A collector that records its calls, with object counts set by a test."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[str, dict[str, Any]], object]] = []
        self.told: list[str] = []
        self.left = 0
        ShortCollections(self).begin()
        assert self.taken() == ["collect", "freeze"]

    def collect(self) -> int:
        self.told.append("collect")
        return 0

    def freeze(self) -> None:
        self.told.append("freeze")

    def unfreeze(self) -> None:
        self.told.append("unfreeze")

    def get_freeze_count(self) -> int:
        return self.left or AT_START

    def get_objects(self) -> list[Any]:
        return [None] * self.left

    def collects(self, left: int, generation: int = 2) -> list[str]:
        """Let Python collect and keep this many objects; return the calls that follow."""
        self.left = left
        (told,) = self.callbacks
        told("start", {"generation": generation})
        told("stop", {"generation": generation})
        return self.taken()

    def taken(self) -> list[str]:
        told, self.told = self.told, []
        return told


def test_what_survives_a_long_collection_is_left_out_of_later_ones() -> None:
    heap = Heap()
    assert heap.collects(FEW - 1) == []
    assert heap.collects(FEW) == ["freeze"]
    assert heap.collects(9 * FEW, generation=1) == [], "those of young objects are short"


def test_everything_is_collected_when_the_heap_may_have_doubled() -> None:
    heap = Heap()
    for _ in range(3):
        assert heap.collects(FEW) == ["freeze"]
    assert heap.collects(FEW) == ["unfreeze"], "as many as there were at the start"
    assert heap.collects(7 * FEW) == ["freeze"], "the whole one"
    for _ in range(6):
        assert heap.collects(FEW) == ["freeze"]
    assert heap.collects(FEW) == ["unfreeze"], "as many as the whole one left"


GROWS = """
import gc, json, sys
from octavo.process import garbage

garbage.FEW = 20_000
if sys.argv[1] == "short":
    garbage.ShortCollections().begin()
visited, objects = [], []
gc.callbacks.append(
    lambda phase, info: phase == "start" and info["generation"] == 2
    and visited.append(len(gc.get_objects()))
)
for number in range(300_000):
    objects.append({"number": number, "list": [number]})
print(json.dumps(sorted(visited, reverse=True)))
"""


def visited(how: str) -> list[int]:
    """Return how many objects each full collection visited while a heap of 600,000 grew."""
    found = subprocess.run(
        [sys.executable, "-c", GROWS, how], capture_output=True, text=True, check=True
    )
    counts: list[int] = json.loads(found.stdout)
    return counts


def test_python_visits_each_object_of_a_growing_heap_few_times() -> None:
    """Counted in objects, so the machine's speed does not matter."""
    before, now = visited("plain"), visited("short")
    large = before[0] / 2
    assert before[0] > 300_000, "or this shows nothing"
    assert sum(1 for count in before if count > large) >= 3
    assert sum(1 for count in now if count > large) == 1, "the next comes when it has doubled"
    assert sum(now) < sum(before) * 0.7


# The pieces of a standalone cluster that need no running process.
def test_the_cluster_file_survives(tmp_path: Path) -> None:
    cluster = ClusterFile(folder=str(tmp_path), metadata_url="file:///m", supervisor_pid=7)
    cluster = cluster.with_member(Member(name="bookie-1", kind="bookie", pid=1, port=3181))
    cluster = cluster.with_member(Member(name="broker-1", kind="broker", address="http://x:1"))
    cluster = cluster.with_member(Member(name="bookie-1", kind="bookie", pid=2, port=3181))
    cluster.write()
    found = read_cluster(tmp_path)
    assert found == cluster
    assert found.urls == ["http://x:1"]
    assert [member.pid for member in found.of_kind("bookie")] == [2]
    assert found.member("none") is None


def test_a_folder_without_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="octavo standalone --data"):
        read_cluster(tmp_path)
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(NoCluster, match="cannot be read"):
        read_cluster(tmp_path)


def test_ports_by_plan() -> None:
    assert ports.port_of("broker", 1, None) == 8080
    assert ports.port_of("bookie", 3, None) == 3183
    assert ports.port_of("broker", 2, 9000) == 9001
    assert ports.port_of("bookie", 1, 9000) == 9050
    assert ports.port_of("admin", 3, None) == 9183
    assert ports.port_of("admin", 30, 9000) == 9129
    assert ports.port_of("bookie", 1, 0) == ports.FREE


def test_a_port_in_use_says_by_whom() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ports.PortInUse) as caught:
            ports.check_ports("127.0.0.1", {"broker-1": port})
        said = str(caught.value)
        assert str(port) in said
        assert "broker-1" in said
        assert f"(pid {os.getpid()})" in said
        assert "--port-base" in said
    ports.check_ports("127.0.0.1", {"broker-1": port})
    ports.check_ports("127.0.0.1", {"broker-1": ports.FREE})
    ports.check_ports("127.0.0.1", {"broker-1": ports.free_port("127.0.0.1")})


def test_all_ports_in_use_are_named_at_once() -> None:
    with socket.socket() as one, socket.socket() as other:
        for holder in (one, other):
            holder.bind(("127.0.0.1", 0))
            holder.listen()
        taken = {"broker-1": one.getsockname()[1], "bookie-2": other.getsockname()[1]}
        with pytest.raises(ports.PortInUse) as caught:
            ports.check_ports("127.0.0.1", taken | {"broker-2": ports.FREE})
    for name, port in taken.items():
        assert f"port {port} for {name} is not free" in str(caught.value)
    assert "broker-2" not in str(caught.value)


def test_no_connection_is_given_a_free_port() -> None:
    """A port may be taken before its listener starts, but not one that the system chooses."""
    found = {ports.free_port() for _ in range(20)}
    assert len(found) > 10, "processes that start together ask together"
    first, last = ports._outgoing()
    assert not any(first <= port <= last for port in found)
    for port in found:
        ports.check_ports("127.0.0.1", {"broker-1": port})


@pytest.mark.parametrize(
    ("outgoing", "chosen"),
    [
        ((32_768, 60_999), range(10_000, 32_768)),
        ((16_000, 65_535), range(10_000, 16_000)),
        ((1_024, 60_000), range(60_001, 65_536)),
        ((1_024, 65_000), range(10_000, 65_536)),
    ],
)
def test_free_ports_are_none_that_the_system_gives_to_connections(
    outgoing: tuple[int, int], chosen: range
) -> None:
    """In a sandbox a killed bookie's port went to a connection before its restart."""
    assert ports.never_outgoing(outgoing) == chosen


def test_alive() -> None:
    assert alive(os.getpid())
    assert not alive(0)
    assert not alive(2**22 + 1)


def small_disk(*, read_only: int) -> ClusterFile:
    cluster = ClusterFile(folder="/d", metadata_url="file:///m", ready=True)
    cluster = cluster.with_member(Member(name="broker-1", kind="broker", address="http://x:1"))
    for number in range(1, 4):
        because = f"disk full: /d/{number} has 7 bytes free" if number <= read_only else ""
        name = f"bookie-{number}"
        member = Member(name=name, kind="bookie", address="x:2", read_only_because=because)
        cluster = cluster.with_member(member)
    return cluster


@pytest.mark.parametrize("read_only", [0, 1, 3])
def test_standalone_says_ready_only_where_something_can_be_published(
    read_only: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a small disk it printed `ready` though each bookie was read-only."""
    _announce(small_disk(read_only=read_only), 1.0, as_json=False)
    said = capsys.readouterr().out
    assert said.count("is read-only: disk full: /d/") == read_only
    assert ("ready after" in said) == (read_only == 0)
    assert ("nothing can be published" in said) == (read_only > 0)
    _announce(small_disk(read_only=read_only), 1.0, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["ready"] == (read_only == 0)
    assert len(told["warnings"]) == read_only


def test_one_full_disk_of_four_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    spare = Member(name="bookie-4", kind="bookie", address="x:3")
    _announce(small_disk(read_only=1).with_member(spare), 1.0, as_json=False)
    said = capsys.readouterr().out
    assert said.index("warning: bookie-1 is read-only") < said.index("ready after")


class _Child:
    name = "broker-1"

    def __init__(self, failures: int, *, lost_session: bool) -> None:
        self.failures, self.starts, self.lost_session = failures, 0, lost_session

    async def start(self) -> dict[str, int]:
        self.starts += 1
        if self.starts <= self.failures:
            failed = ChildFailed("broker-1 did not start: its session is over")
            failed.lost_session = self.lost_session
            raise failed
        return {"pid": 7}


async def test_a_start_that_loses_its_session_is_repeated(tmp_path: Path) -> None:
    """On a machine that is too busy, a process loses its session before it serves."""
    supervisor = Supervisor(Plan(folder=tmp_path))
    child: Any = _Child(STARTS_MAX - 1, lost_session=True)
    assert await supervisor._until_started(child) == {"pid": 7}
    for lost_session, starts in ((True, STARTS_MAX), (False, 1)):
        child = _Child(STARTS_MAX, lost_session=lost_session)
        with pytest.raises(ChildFailed, match="its session is over"):
            await supervisor._until_started(child)
        assert child.starts == starts


async def test_root_records_are_made_though_a_session_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = LedgerStore.initialize, 0

    async def initialize(store: LedgerStore) -> None:
        nonlocal calls
        calls += 1
        if calls < STARTS_MAX:
            raise SessionExpired("the session in which this call began is over")
        await real(store)

    monkeypatch.setattr(LedgerStore, "initialize", initialize)
    await Supervisor(Plan(folder=tmp_path))._prepare_metadata()
    assert calls == STARTS_MAX
    calls = -STARTS_MAX
    with pytest.raises(SessionExpired):
        await Supervisor(Plan(folder=tmp_path))._prepare_metadata()


class _Speaking(Child):
    said = ""

    @property
    def command(self) -> list[str]:
        script = "import os, sys; os.write(int(sys.argv[2]), sys.argv[3].encode() + b'\\n')"
        return [sys.executable, "-c", f"import sys; sys.argv.append({self.said!r}); {script}"]


@pytest.mark.parametrize("lost", [True, False])
async def test_a_child_says_that_it_lost_its_session(tmp_path: Path, lost: bool) -> None:
    spec = ProcessSpec(name="broker-1", metadata_url=f"file://{tmp_path}/m", sections={})
    child = _Speaking("broker", spec, tmp_path)
    child.said = json.dumps({"event": "failed", "reason": "why", "lost_session": lost})
    with pytest.raises(ChildFailed, match="why") as failed:
        await child.start()
    assert failed.value.lost_session == lost


# Unused packages are not imported: checked by the loaded modules, not by time.
HEAVY = (
    "aiohttp",
    "aiokafka",
    "cryptography",
    "kazoo",
    "pandas",
    "pyarrow",
    "pyspark",
    "rocksdict",
)
"""Octavo's dependencies that take long to import."""

PROGRAM = """
import sys
{work}
print(*sorted({{{name} for name in sys.modules}}))
"""
PACKAGE = 'name.partition(".")[0]'
WHOLE = "name"
HELP = """
from octavo.cli.main import run
assert run({arguments!r}) == 0
"""


def loaded(work: str, *, whole: bool = False) -> set[str]:
    """Return the packages that a program has imported at its end, or all modules by full names."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(work=work, name=WHOLE if whole else PACKAGE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(found.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["publish", "--help"],
        ["consume", "--help"],
        ["topic", "--help"],
        ["topic", "create", "--help"],
        ["standalone", "--help"],
        ["stream", "--help"],
        ["bookie", "--help"],
    ],
    ids=" ".join,
)
def test_help_imports_no_http_client(arguments: list[str]) -> None:
    assert not loaded(HELP.format(arguments=arguments)) & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_the_list_of_commands_imports_no_command(arguments: list[str]) -> None:
    """All 23 were imported, with rich, to print one line of each."""
    found = loaded(HELP.format(arguments=arguments), whole=True)
    assert not found & {"asyncio", "msgspec", "rich", "ssl"}
    assert {name for name in found if name.startswith("octavo.cli.")} == {
        "octavo.cli.main",
        "octavo.cli.tree",
    }


@pytest.mark.parametrize(
    "arguments", [["topic", "--help"], ["bookie", "sizes", "--help"], ["publish", "--help"]]
)
def test_help_of_a_command_draws_nothing_with_rich(arguments: list[str]) -> None:
    found = loaded(HELP.format(arguments=arguments), whole=True)
    assert not found & {"typer.rich_utils", "rich.markdown", "rich.panel"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_their_own_help_says(name: str) -> None:
    command = Commands(name="octavo").commands[name]
    assert command.get_short_help_str(limit=1000) == COMMANDS[name].summary


def test_a_mistyped_command_names_those_that_are_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["topc"]) == 2
    assert "Did you mean 'topic'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "work",
    [
        "import octavo",
        "from octavo import Client, AsyncClient, ClientError, Message",
        "import octavo; [getattr(octavo, name) for name in octavo.__all__]",
    ],
)
def test_importing_the_client_imports_no_http_client(work: str) -> None:
    """It is there when a client is made, before any call: no event loop waits for it."""
    assert not loaded(work) & set(HEAVY)


@pytest.mark.parametrize("name", ["Client", "AsyncClient"])
def test_importing_the_client_reads_no_metadata_of_packages(name: str) -> None:
    """A library for checksums read metadata, and parsed arguments: a fifth of the whole import."""
    found = loaded(f"from octavo import {name}", whole=True)
    assert not found & {"argparse", "crc32c", "email.message", "importlib.metadata", "zipfile"}


@pytest.mark.parametrize("name", ["Client", "AsyncClient"])
def test_importing_the_client_imports_few_packages(name: str) -> None:
    found = loaded(f"from octavo import {name}", whole=True)
    packages = {one.partition(".")[0] for one in found} - set(sys.stdlib_module_names)
    assert {one for one in packages if not one.startswith("_")} <= {
        "cramjam", "msgspec", "octavo", "sitecustomize", "typing_extensions",
    }  # fmt: skip
    rooms = {one.split(".")[1] for one in found if one.startswith("octavo.")}
    assert rooms <= {"client", "clock", "credentials", "loop_thread", "protocol", "tls"}
    assert not found & {
        "aiohttp", "concurrent.futures.process", "email.message", "http.client", "multiprocessing",
        "sqlite3", "unittest", "urllib.request", "xml",
    }  # fmt: skip


def test_it_is_there_when_a_client_is_made() -> None:
    assert "aiohttp" in loaded("from octavo import AsyncClient; AsyncClient('http://127.0.0.1:9')")


def test_what_is_named_lazily_is_there_when_used() -> None:
    work = (
        "from octavo.protocol.records import Record, build_batch; build_batch([Record(None, b'')])"
    )
    assert "aiokafka" in loaded(work)
