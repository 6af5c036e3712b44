"""BookKeeper's shell over a cluster, in the wanted wire protocol, and its output."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.apache.grounds import Bookie, Grounds
from tests.interop.ours import OurBookie

SOURCE = Path(__file__).with_name("Shells.java")
ANSWER_S = 180
_SAID = re.compile(r"^(?:INFO|WARN|ERROR) (\w*(?:Command|Cmd)) - (.*)$")


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    text: str

    @property
    def said(self) -> list[str]:
        found = (_SAID.match(line) for line in self.text.splitlines())
        return [f"{match[1]}: {match[2]}" for match in found if match]


def conf_of(grounds: Grounds, wire: str, bookie: Bookie | None = None, more: str = "") -> str:
    port, journal, ledgers = 3181, grounds.folder / "no-journal", grounds.folder / "no-ledgers"
    if isinstance(bookie, OurBookie):
        port, journal, ledgers = bookie.port, bookie.journal, bookie.ledgers
    elif bookie is not None:
        port, journal, ledgers = bookie.port, bookie.folder / "journal", bookie.folder / "ledgers"
    return (
        f"metadataServiceUri=zk+hierarchical://127.0.0.1:{grounds.zookeeper.port}/ledgers\n"
        f"journalDirectories={journal}\nledgerDirectories={ledgers}\nbookiePort={port}\n"
        "allowLoopback=true\nadvertisedAddress=127.0.0.1\nzkTimeout=4000\n"
        f"useV2WireProtocol={'true' if wire == 'v2' else 'false'}\n{more}"
    )


class Shells:
    """Runs commands one after another in one process: starting Java costs more than they do."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        classes = grounds.folder / "classes-of-shells"
        grounds.java.compile(SOURCE, classes)
        self._process = subprocess.Popen(
            grounds.java.command("Shells", classes=classes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=grounds.folder,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def ask(self, wire: str, *words: str, bookie: Bookie | None = None) -> Answer:
        conf = self._grounds.folder / "asked.conf"
        conf.write_text(conf_of(self._grounds, wire, bookie))
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join([str(conf), *words]) + "\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + ANSWER_S
        heard: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                said = "".join(heard)[-2000:]
                raise AssertionError(f"{words}: not done in {ANSWER_S} s:\n{said}") from None
            if line.startswith("EXIT "):
                return Answer(int(line.split()[1]), "".join(heard))
            heard.append(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def shells_on(grounds: Grounds) -> Iterator[Shells]:
    shells = Shells(grounds)
    try:
        yield shells
    finally:
        shells.close()
