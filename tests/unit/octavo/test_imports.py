"""Unused packages are not imported: checked by the loaded modules, not by time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.cli.main import run
from octavo.cli.tree import COMMANDS, Commands

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
