"""Messages with terminal commands: `octavo consume` and `octavo peek` escape them."""

from __future__ import annotations

import asyncio
import base64
import os
import pty
import subprocess
import sys

from tests.attack.attempts import attempt
from tests.attack.world import World

ESCAPES = "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b[2J\x9b31m\u202etxt\b"
OBEYED = [one.encode() for one in ("\x1b", "\x07", "\x9b", "\u202e", "\b")]
MESSAGES = 3
COMMANDS = {
    "consume": ["--from", "earliest", "--limit", str(MESSAGES)],
    "consume --json": ["--from", "earliest", "--limit", str(MESSAGES), "--json"],
    "consume --raw": ["--from", "earliest", "--limit", str(MESSAGES), "--raw"],
}
SHOWN_S = 120.0


def on_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    found = bytearray()
    try:
        with subprocess.Popen(
            command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment
        ) as process:
            os.close(theirs)
            try:
                while part := os.read(ours, 65536):
                    found += part
            except OSError:
                pass
            assert process.wait(SHOWN_S) == 0, bytes(found)
    finally:
        os.close(ours)
    return bytes(found)


@attempt("a terminal: escapes in keys, values and headers of what is consumed")
async def escapes(world: World) -> None:
    """A message set the title of its reader's terminal, and wrote the clipboard."""
    path = await world.topic("escapes")
    for number in range(MESSAGES):
        body = {
            "value": ESCAPES if number else {ESCAPES: ESCAPES},
            "key": ESCAPES,
            "headers": {"name": ESCAPES},
        }
        said = await world.ask("POST", f"{path}/messages", body)
        assert said.status == 200, said
    environment = {**world.environment, "OCTAVO_URL": world.urls[0], "TERM": "xterm"}
    for name, options in COMMANDS.items():
        verb = name.split()[0]
        command = [sys.executable, "-m", "octavo.cli.main", verb, "public/escapes", *options]
        found = await asyncio.to_thread(on_terminal, command, environment)
        assert b"owned" in found, (name, found)
        for one in OBEYED:
            assert one not in found, (name, base64.b64encode(found)[:2000], one)
