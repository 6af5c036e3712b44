"""Six partitions of a real cluster on separate hosts, under load, and one case of late packets.
`make network-matrix` has them all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled, find_class_path, find_java
from tests.network.cases import BY_NAME, CASES, DELAYS, Roles, between, hear_each_other, silent
from tests.network.hosts import CLIENT, NoNamespaces, check_namespaces, sandboxed
from tests.support.processes.chaos import SESSION_MS
from tests.support.processes.standalone import environment

ROOT = Path(__file__).resolve().parents[2]
CELLS = (
    "bookie:roll-over",
    "owner:steady",
    "owner-without-metadata:roll-over",
    "client-in-minority:steady",
    "zookeeper-leader:take-over",
    "loss-30:steady",
    "late-metadata:steady",
)


@pytest.mark.long
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
def test_six_partitions_and_a_delay(tmp_path: Path) -> None:
    """No acked message is lost, doubled or reordered, no minority acks, and all comes back."""
    need(check_namespaces, NoNamespaces, "REQUIRE_NETNS")
    need(lambda: (find_java(), find_class_path()), ZooKeeperNotInstalled, "REQUIRE_ZOOKEEPER")
    found = tmp_path / "cells.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.network", "--json", str(found), "--cells", *CELLS],
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    cells = json.loads(found.read_text())
    assert [f"{cell['case']}:{cell['phase']}" for cell in cells] == [*CELLS]
    by_case = {cell["case"]: cell for cell in cells}
    assert all(cell["recovery_s"] is not None for cell in cells)
    assert len(by_case["owner"]["silent"]) == 1, "somebody tried to publish at the cut-off owner"
    assert by_case["owner"]["acked_while_cut"] > 0
    assert by_case["client-in-minority"]["acked_while_cut"] == 0


def need(check: Callable[[], object], missing: type[Exception], required: str) -> None:
    """Skip with the reason; where CI installs the tool, fail."""
    try:
        check()
    except missing as error:
        if os.environ.get(required):
            raise
        pytest.skip(str(error))


ROLES = Roles(
    owner="broker-2",
    other="broker-1",
    brokers=("broker-1", "broker-2", "broker-3"),
    bookies=("bookie-4", "bookie-1", "bookie-2", "bookie-3"),
    zk_leader="zk-3",
    zookeepers=("zk-1", "zk-2", "zk-3"),
)


def test_there_are_twenty_and_those_of_delay_and_each_has_a_name_of_its_own() -> None:
    assert len(CASES) == 20
    assert len(BY_NAME) == len(CASES) + len(DELAYS)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_case_loses_packets_of_real_links_in_both_phases_of_the_owner(name: str) -> None:
    for roles in (ROLES, Roles(**{**vars(ROLES), "brokers": ("broker-1", "broker-2")})):
        loss, late = BY_NAME[name].loss(roles), BY_NAME[name].late(roles)
        assert bool(loss) != bool(late), "either lost or late"
        for sender, receiver in (*loss, *late):
            assert sender != receiver
            assert {sender, receiver} <= set(roles.everybody)
        assert all(0 < share <= 1 for share in loss.values())
        assert all(0 < one.ms >= one.jitter_ms >= 0 for one in late.values())


def test_metadata_comes_later_than_a_session_ends() -> None:
    late = BY_NAME["late-metadata"].late(ROLES)
    assert {*late} == {*between([ROLES.owner], ROLES.zookeepers)}
    assert all(one.ms > SESSION_MS for one in late.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bookie", []),
        ("owner", ["broker-2"]),
        ("owner-deaf", ["broker-2"]),
        ("owner-mute", ["broker-2"]),
        ("owner-without-metadata", []),
        ("client", [CLIENT]),
        ("owner-in-minority", ["broker-2"]),
        ("client-in-minority", ["broker-2", CLIENT]),
        ("halves", []),
        ("pieces", ["broker-1", "broker-2"]),
        ("zookeeper", []),
        ("loss-60", []),
    ],
)
def test_nobody_acknowledges_without_an_ack_quorum(name: str, expected: list[str]) -> None:
    assert silent(BY_NAME[name].loss(ROLES), ROLES) == expected


def test_one_closed_direction_is_enough_not_to_hear_each_other() -> None:
    assert hear_each_other({}, "a", "b")
    assert hear_each_other({("a", "b"): 0.6}, "a", "b")
    assert not hear_each_other({("a", "b"): 1.0}, "b", "a")
    assert hear_each_other(between(["a"], ["b"]), "a", "a")


SLEEPERS = "86399.7717"
"""A duration that no other process sleeps for."""
PROGRAM = textwrap.dedent(
    """
    import asyncio, socket, subprocess, sys, time
    from tests.network.hosts import Lateness
    from tests.network.hosts import CLIENT, Hosts, enter_sandbox

    enter_sandbox("", ())
    hosts = Hosts(("a", "b"))
    hosts.make()
    listening = {}
    for name in ("a", "b"):
        listening[name] = hosts.socket_of(name)
        listening[name].bind((hosts.addresses[name], 7000))
        listening[name].listen()

    def reaches(here, there):
        with hosts.socket_of(here) as one:
            one.settimeout(0.7)
            try:
                one.connect((hosts.addresses[there], 7000))
            except TimeoutError:
                return False
            return True

    def heard(sender, receiver):
        '''A datagram needs no answer: it shows one direction alone.'''
        with hosts.on(receiver):
            to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with hosts.on(sender):
            by = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with to, by:
            to.bind((hosts.addresses[receiver], 7001))
            to.settimeout(0.7)
            by.sendto(b"x", (hosts.addresses[receiver], 7001))
            try:
                return to.recv(1) == b"x"
            except TimeoutError:
                return False

    def at_last(goes, here, there):
        '''A link that was just made, on a busy machine, may lose the first packet.'''
        return any(goes(here, there) for _ in range(60))

    assert all(at_last(reaches, *link) for link in (("a", "b"), ("b", "a"), (CLIENT, "a")))
    asyncio.run(hosts.impair({("a", "b"): 1.0}))
    assert not heard("a", "b") and at_last(heard, "b", "a")
    assert not reaches("a", "b") and not reaches("b", "a") and at_last(reaches, CLIENT, "b")
    asyncio.run(hosts.impair({("b", "a"): 1.0}))
    assert at_last(heard, "a", "b") and not heard("b", "a")
    asyncio.run(hosts.impair({}))
    assert at_last(reaches, "a", "b") and at_last(reaches, "b", "a")
    # Late, both of them, and in the order in which they were sent; the other way at once.
    asyncio.run(hosts.impair({}, {("a", "b"): Lateness(400, 300)}))
    with hosts.on("a"):
        by = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with hosts.on("b"):
        to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    by.bind((hosts.addresses["a"], 7002))
    to.bind((hosts.addresses["b"], 7002))
    for one in (by, to):
        one.settimeout(60)
    began = time.monotonic()
    for number in range(100):
        by.sendto(b"%d" % number, (hosts.addresses["b"], 7002))
    to.sendto(b"back", (hosts.addresses["a"], 7002))
    assert by.recv(9) == b"back"
    assert [int(to.recv(9)) for _ in range(100)] == [*range(100)]
    assert time.monotonic() - began > 0.4, "a hundred draws, and the latest holds up the rest"
    asyncio.run(hosts.impair({}, {("b", "a"): Lateness(100)}))
    assert reaches("a", "b") and reaches("b", "a"), "late, but there"
    asyncio.run(hosts.impair({}))
    assert at_last(reaches, "a", "b")
    subprocess.Popen([*hosts.command("a"), "sleep", sys.argv[1]])
    print("well", flush=True)
    sys.stdin.read()
    """
)


def sleepers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", SLEEPERS.encode()]:
            found.append(path.parent.name)
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_links_are_directed_and_nothing_is_left_after_kill_9() -> None:
    need(check_namespaces, NoNamespaces, "REQUIRE_NETNS")
    command, inside = sandboxed(sys.executable, "-c", PROGRAM, SLEEPERS)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**inside, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "well\n"
        until(lambda: len(sleepers()) == 1)
        assert "hub" not in os.listdir("/sys/class/net"), "the bridge is in the sandbox alone"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    until(lambda: not sleepers())
    assert not list(Path("/run/netns").glob("[ab]"))
    process.communicate()
