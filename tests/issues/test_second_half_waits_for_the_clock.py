"""When a full disk had room again, one half of the write cache was flushed and the other was not.

While a flush is tried again and again the other half fills. The flush that went through at last
told nobody that there was a full half left: the next add does, but adds are held up while the cache
is over its bound. So everybody waited for `flush_interval_ms`. Found by reading the engine.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.bookie.disk.files import DiskFull
from octavo.protocol.codes import Code
from tests.support.storage_support import CONFIG, Bench, eventually

SMALL = replace(CONFIG, write_cache_bytes_max=64 * 1024)


async def test_both_halves_are_flushed() -> None:
    async with Bench(SMALL) as bench:

        def hook(call: str, path: str) -> None:
            if call in ("preallocate", "pwritev") and path.endswith(".log"):
                raise DiskFull(f"{call} {path}: no space left")

        bench.disk.hook = hook
        cache = bench.storage._cache
        number = 0
        while cache.flushing is None or not cache.is_full:
            code = await bench.add(1, number, b"x" * 10_000, recovery=True)
            assert code is Code.OK
            number += 1
        await eventually(lambda: bench.storage.disk_full)
        bench.disk.hook = lambda call, path: None
        await eventually(lambda: not bench.storage.disk_full)
        await eventually(lambda: not cache.active.bytes, timeout_s=3)
