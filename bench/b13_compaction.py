"""B13: a topic is compacted while it is written, and the effect on publishers.

    python -m bench.b13_compaction                                   # 1 M messages, 10,000 keys

A topic gets batches of 100 B messages with random keys, as fast as possible; another gets single
messages at a steady rate, before and meanwhile. Then the program waits, at most ten minutes, for
the compaction; the view must have the newest message of each key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench.b8_growth import RECORD_BATCH, memory_mib, ok
from bench.program import arguments, end
from bench.standalone import as_typed
from octavo.protocol.batch import split_batches
from octavo.protocol.records import Record, build_batch, read_gapped_records

BATCH_MESSAGES = 600
AT_ONCE = 4
SINGLE_EVERY_S = 0.02
LOOK_EVERY_S = 1.0
QUIET_S_MAX = 600.0
MIB = 1 << 20


class Singles:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.took_ms: list[float] = []

    async def go_on(self) -> None:
        while True:
            began = time.monotonic()
            await ok(self._session, "POST", "singles/messages", data=b"x" * 100)
            self.took_ms.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(SINGLE_EVERY_S)

    def take(self) -> dict[str, float]:
        took, self.took_ms = sorted(self.took_ms), []
        return {
            "count": len(took),
            "p50_ms": round(statistics.median(took), 2),
            "p99_ms": round(took[len(took) * 99 // 100], 2),
        }


async def figures(session: aiohttp.ClientSession) -> dict[str, Any]:
    found: dict[str, Any] = (await ok(session, "GET", "accounts"))["partitions"][0]
    return found


async def written(
    session: aiohttp.ClientSession, options: argparse.Namespace, newest: dict[bytes, int]
) -> tuple[float, int]:
    rng = random.Random(1)
    numbers = iter(range(options.messages // BATCH_MESSAGES))
    values = [os.urandom(80) for _ in range(1_000)]
    most = 0

    async def worker() -> None:
        for _ in numbers:
            keys = [b"key-%d" % rng.randrange(options.keys) for _ in range(BATCH_MESSAGES)]
            batch = build_batch([Record(key, rng.choice(values), (), 1) for key in keys])
            said = await ok(session, "POST", "accounts/messages", data=batch, headers=RECORD_BATCH)
            first = said["first"]["offset"]
            for offset, key in enumerate(keys, first):
                newest[key] = max(offset, newest.get(key, -1))

    async def watch() -> None:
        nonlocal most
        while True:
            now = await figures(session)
            most = max(most, now["stored_bytes"] + now.get("compacted", {}).get("bytes", 0))
            await asyncio.sleep(LOOK_EVERY_S)

    watching = asyncio.create_task(watch())
    began = time.monotonic()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    took_s = time.monotonic() - began
    watching.cancel()
    return took_s, most


async def until_quiet(session: aiohttp.ClientSession) -> dict[str, Any]:
    began = time.monotonic()
    while time.monotonic() - began < QUIET_S_MAX:
        now = await figures(session)
        uncompacted = now.get("uncompacted")  # missing without compaction
        if uncompacted is None:
            return now
        horizon = now.get("compacted", {}).get("horizon", 0)
        if not uncompacted["due"] and now["earliest_offset"] >= horizon:
            return now
        await asyncio.sleep(LOOK_EVERY_S)
    raise SystemExit(f"after {QUIET_S_MAX:g} s a run is due, or its messages are still kept: {now}")


async def check(session: aiohttp.ClientSession, newest: dict[bytes, int]) -> int:
    at, read, last = "earliest", 0, dict[bytes, int]()
    while True:
        query = {"from": at, "compacted": "true"}
        headers = {"Accept": "application/vnd.kafka.recordbatch.v2"}
        async with session.get("accounts/messages", params=query, headers=headers) as answer:
            if answer.status == 204:
                break
            if answer.status != 200:
                raise SystemExit(f"read: {answer.status} {await answer.text()}")
            body, at = await answer.read(), answer.headers["Next-Offset"]
        for header, data in split_batches(body, gaps=True):
            for record in read_gapped_records(data):
                assert record.key is not None
                last[record.key] = header.base_offset + record.offset_delta
                read += 1
    if last != newest:
        raise SystemExit("the view lacks the newest message of a key")
    return read


async def measure(cluster: Any, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"messages": options.messages, "keys": options.keys}
    async with aiohttp.ClientSession(f"{cluster.url}/v1/topics/public/") as session:
        compaction = {"after_size": "8MiB", "delete_raw": True} if not options.without else None
        settings = {"compaction": compaction, "rollover": {"size": "8MiB", "entries": 1_000_000}}
        await ok(session, "PUT", "accounts", json=settings)
        await ok(session, "PUT", "singles")
        singles = Singles(session)
        going = asyncio.create_task(singles.go_on())
        await asyncio.sleep(5)
        found["singles_alone"] = singles.take()
        newest: dict[bytes, int] = {}
        found["written_s"], found["most_bytes"] = await written(session, options, newest)
        found["singles_while_written"] = singles.take()
        began = time.monotonic()
        after = await until_quiet(session)
        found["quiet_after_s"] = time.monotonic() - began
        await asyncio.sleep(5)
        found["singles_afterwards"] = singles.take()
        going.cancel()
        found["stored_bytes"], found["compacted"] = after["stored_bytes"], after.get("compacted")
        if not options.without:
            found["read"] = await check(session, newest)
        found["mib"] = memory_mib(cluster)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--without", action="store_true", help="no compaction, to compare with")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="octavo-b13-") as name,
        as_typed(Path(name) / "data") as cluster,
    ):
        found = asyncio.run(measure(cluster, options))
    most, stored = found["most_bytes"] / MIB, found["stored_bytes"] / MIB
    print(
        f"{options.messages:,} messages of {options.keys:,} keys in {found['written_s']:.1f} s; at "
        f"most {most:.0f} MiB were kept; {found['quiet_after_s']:.1f} s later {stored:.1f} MiB "
        f"beside the view {found['compacted']}"
    )
    for when in ("alone", "while_written", "afterwards"):
        print(f"single messages {when}: {found[f'singles_{when}']}")
    end(options, "b13_compaction", **found)


if __name__ == "__main__":
    main()
