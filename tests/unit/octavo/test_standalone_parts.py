"""The pieces of a standalone cluster that need no running process."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.standalone import _announce
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import SessionExpired
from octavo.process.spec import ProcessSpec
from octavo.standalone import ports
from octavo.standalone.child import Child, ChildFailed
from octavo.standalone.cluster_file import ClusterFile, Member, NoCluster, alive, read_cluster
from octavo.standalone.supervisor import STARTS_MAX, Plan, Supervisor


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
    """Three bookies, some of them on a full disk."""
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
    """Fails in its first starts."""

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
