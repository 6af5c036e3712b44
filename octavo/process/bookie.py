"""A bookie as a process: `python -m octavo.process.bookie SPEC [CONTROL_FD]`.

Imports neither the HTTP client nor the command line: a bookie's memory belongs to its caches.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.node import BookieNode
from octavo.clock import wall_clock_ms
from octavo.metadata.opening import open_store
from octavo.process.copies import kept_copies
from octavo.process.life import Life, run_process
from octavo.process.spec import ProcessSpec, read_spec
from octavo.tls.contexts import certificates_of, kept_fresh
from octavo.tls.settings import TlsConfig


async def serve_bookie(spec: ProcessSpec, life: Life) -> None:
    """Start, register, serve until stopped; every start error names its cause."""
    config = spec.config(BookieConfig, "bookie")
    tls = certificates_of(spec.config(TlsConfig, "tls"))
    store = open_store(
        spec.metadata_url,
        session_timeout_ms=spec.session_timeout_ms,
        credentials_file=spec.metadata_credentials_file,
    )
    await store.start()
    try:
        node = BookieNode(
            config, store, disk=RealDisk(), rng=random.SystemRandom(), clock=wall_clock_ms, tls=tls
        )
        await node.start()
        failed = asyncio.ensure_future(life.fail_with(node.failed))
        try:
            life.ready(bookie_id=node.bookie_id, address=node.address)
            copies = kept_copies(
                node, store, rng=random.SystemRandom(), clock=wall_clock_ms, tls=tls
            )
            async with kept_fresh(tls), copies:
                await life.until_stopped()
        finally:
            failed.cancel()
            await node.stop()
    finally:
        await store.close()


def main() -> int:
    """Entry point of the lean process."""
    spec = read_spec(Path(sys.argv[1]))
    control = int(sys.argv[2]) if len(sys.argv) > 2 else None
    return run_process(serve_bookie, spec, control)


if __name__ == "__main__":
    sys.exit(main())
