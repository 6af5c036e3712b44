"""Hosts of network namespaces: one direction at a time, and nothing left, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from tests.network.hosts import NoNamespaces, check_namespaces, sandboxed
from tests.network.test_partitions import ROOT, need

SLEEPERS = "86399.7717"
"""A duration that no other process sleeps for."""
PROGRAM = textwrap.dedent(
    """
    import asyncio, socket, subprocess, sys, time
    from tests.network.delays import Lateness
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
