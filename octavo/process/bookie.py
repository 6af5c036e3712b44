"""A bookie's process: `python -m octavo.process.bookie SPEC [CONTROL_FD]`.

Imports neither the HTTP client nor the command line, to leave the memory to caches.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.node import BookieNode
from octavo.bookie.wire.guard import Guard
from octavo.clock import wall_clock_ms
from octavo.metadata.opening import open_store
from octavo.process.copies import kept_copies
from octavo.process.life import Life, run_process
from octavo.process.spec import ProcessSpec, read_spec
from octavo.security.bookie_tokens import node_prover
from octavo.security.identity.opening import open_authenticator
from octavo.security.settings import SecurityConfig
from octavo.tls.contexts import certificates_of, kept_fresh
from octavo.tls.settings import TlsConfig


async def serve_bookie(spec: ProcessSpec, life: Life) -> None:
    config = spec.config(BookieConfig, "bookie")
    security = spec.config(SecurityConfig, "security")
    tls = certificates_of(spec.config(TlsConfig, "tls"))
    store = open_store(
        spec.metadata_url,
        session_timeout_ms=spec.session_timeout_ms,
        credentials_file=spec.metadata_credentials_file,
        tls=tls,
    )
    await store.start()
    try:
        rng = random.SystemRandom()
        callers = await open_authenticator(security, store, wall_clock_ms, rng, _fetch)
        await callers.start()
        try:
            guard = Guard(store, wall_clock_ms, callers)
            node = BookieNode(
                config,
                store,
                disk=RealDisk(),
                rng=rng,
                clock=wall_clock_ms,
                tls=tls,
                guard=guard,
            )
            await node.start()
            failed = asyncio.ensure_future(life.fail_with(node.failed))
            try:
                life.ready(
                    bookie_id=node.bookie_id,
                    address=node.address,
                    read_only_because=node.read_only_because,
                )
                prove = await node_prover(store, node.bookie_id, wall_clock_ms)
                copies = kept_copies(
                    node, store, rng=rng, clock=wall_clock_ms, tls=tls, prove=prove
                )
                async with kept_fresh(tls), copies:
                    await life.until_stopped()
            finally:
                failed.cancel()
                await node.stop()
        finally:
            await callers.close()
    finally:
        await store.close()


async def _fetch(url: str) -> bytes:
    """Fetch a URL; import the HTTP client here, as only settings with a URL need it."""
    from octavo.process.fetching import fetch

    return await fetch(url)


def main() -> int:
    spec = read_spec(Path(sys.argv[1]))
    control = int(sys.argv[2]) if len(sys.argv) > 2 else None
    return run_process(serve_bookie, spec, control)


if __name__ == "__main__":
    sys.exit(main())
