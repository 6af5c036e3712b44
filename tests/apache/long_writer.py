"""Apache's own client, which writes for as long as bookies are exchanged (`LongWriter.java`)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from octavo.ledger.client import LedgerClient
from tests.apache.grounds import Grounds
from tests.interop.clients import payload_of

SOURCE = Path(__file__).with_name("LongWriter.java")
ENTRIES = 2_000
END_S = 120
PASSWORD = b"secret"


class LongWriter:
    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._process: asyncio.subprocess.Process | None = None
        self.ledgers: dict[int, int] = {}
        self.errors: list[str] = []
        self.result: dict[str, int] = {}

    async def start(self, wire: str) -> None:
        """Begin to write, in frames of `wire` (v2 or v3), on 3/3/2."""
        grounds = self._grounds
        classes = grounds.folder / "classes"
        await asyncio.to_thread(grounds.java.compile, SOURCE, classes)
        uri = f"zk+hierarchical://127.0.0.1:{grounds.zookeeper.port}/ledgers"
        words = ("LongWriter", uri, wire, "3", "3", "2", str(ENTRIES))
        log = (grounds.folder / f"long-writer-{wire}.log").open("ab")
        with log:
            self._process = await asyncio.create_subprocess_exec(
                *grounds.java.command(*words, classes=classes),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def finish(self) -> None:
        assert self._process is not None
        async with asyncio.timeout(END_S):
            out, _ = await self._process.communicate(b"stop\n")
        for line in out.decode().splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "LEDGER":
                ledger, entries = map(int, rest.split())
                self.ledgers[ledger] = entries
            elif kind == "FAILED":
                self.errors.append(rest)
            elif kind == "RESULT":
                self.result = {
                    name: int(number) for name, number in (one.split("=") for one in rest.split())
                }

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def wrong_by_us(self, client: LedgerClient) -> list[str]:
        wrong = []
        for ledger, entries in self.ledgers.items():
            reader = await client.open(ledger, password=PASSWORD)
            if reader.last_add_confirmed != entries - 1:
                wrong.append(f"ledger {ledger} ends at {reader.last_add_confirmed}, not {entries}")
            wrong += [
                f"ledger {ledger} entry {entry.entry_id} has other bytes"
                async for entry in reader.entries(0, entries - 1)
                if bytes(entry.payload) != payload_of(entry.entry_id)
            ]
            await reader.close()
        return wrong
