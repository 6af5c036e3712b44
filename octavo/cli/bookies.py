"""`octavo bookies`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from octavo.cli.options import AsJson, Data, Metadata, metadata_url
from octavo.cli.output import emit_json, emit_table, say

if TYPE_CHECKING:
    from octavo.metadata.bookies import BookieInfo


def bookies(metadata: Metadata = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the bookies that are up, and the bookies that should be up.

    A bookie should be up from its first start until it is forgotten. `kind` is Octavo's or
    Apache BookKeeper's software.

    \b
    Example:
      octavo bookies --data ./octavo-data
    """
    up, known = asyncio.run(_collect(metadata_url(metadata, data)))
    if as_json:
        emit_json([_plain(up.get(name), name) for name in known])
        return
    rows = []
    for name in known:
        found = _plain(up.get(name), name)
        rows.append((name, found["state"], found["address"], found["rack"], found["kind"]))
    emit_table(("bookie", "state", "address", "rack", "kind"), rows)
    say(f"{len(up)} of {len(known)} up")


async def _collect(url: str) -> tuple[dict[str, BookieInfo], list[str]]:
    from octavo.credentials import certificates, credentials_file
    from octavo.logs import configure_logging
    from octavo.metadata.bookies import BookieRegistry
    from octavo.metadata.opening import open_store

    configure_logging(form="console", level="error")
    store = open_store(url, credentials_file=credentials_file(), tls=certificates())
    await store.start()
    try:
        registry = BookieRegistry(store)
        up = await registry.available()
        return up, sorted(set(up) | set(await registry.cookies()))
    finally:
        await store.close()


def _plain(info: BookieInfo | None, name: str) -> dict[str, str]:
    if info is None:
        return {"bookie": name, "state": "down", "address": "", "rack": "", "kind": ""}
    return {
        "bookie": name,
        "state": "read-only" if info.read_only else "writable",
        "address": f"{info.host}:{info.port}",
        "rack": info.properties.get("rack", ""),
        "kind": "octavo" if info.incarnation else "apache",
    }
