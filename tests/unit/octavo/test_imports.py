"""What a command or a program does not use is not imported: by the modules that are there, not by
the time that it took.

`octavo --help` imported aiohttp, and `from octavo import Client` all of aiohttp and aiokafka.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "aiokafka", "cryptography", "kazoo", "rocksdict", "pyspark", "pandas")
"""Of what Octavo is made of, the packages that take long to import."""

PROGRAM = """
import sys
{work}
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
HELP = """
from octavo.cli.main import run
assert run({arguments!r}) == 0
"""


def loaded(work: str) -> set[str]:
    """The packages that a program has imported at its end."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(work=work)],
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


@pytest.mark.parametrize(
    "work",
    [
        "import octavo",
        "from octavo import Client, AsyncClient, ClientError, Message",
        "import octavo; [getattr(octavo, name) for name in octavo.__all__]",
    ],
)
def test_importing_the_client_imports_no_http_client(work: str) -> None:
    """It is there when a client is made, before any call: no loop of events waits for it."""
    assert not loaded(work) & set(HEAVY)


def test_it_is_there_when_a_client_is_made() -> None:
    assert "aiohttp" in loaded("from octavo import AsyncClient; AsyncClient('http://127.0.0.1:9')")


def test_what_is_named_lazily_is_there_when_used() -> None:
    """So that nothing of the above is a program that does nothing."""
    work = (
        "from octavo.protocol.records import Record, build_batch; build_batch([Record(None, b'')])"
    )
    assert "aiokafka" in loaded(work)
