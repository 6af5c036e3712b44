"""Open the metadata store for commands that work on it directly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from octavo.cli.options import metadata_url

if TYPE_CHECKING:
    from octavo.metadata.store import MetadataStore

T = TypeVar("T")


def with_store(url: str, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
    from octavo.credentials import credentials_file
    from octavo.logs import configure_logging
    from octavo.metadata.opening import open_store

    configure_logging(form="console", level="error")

    async def run() -> T:
        store = open_store(url, credentials_file=credentials_file())
        await store.start()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def checked_store_url(metadata: str | None, data: Path | None) -> str:
    from octavo.credentials import credentials_file
    from octavo.metadata.opening import open_store

    url = metadata_url(metadata, data)
    open_store(url, credentials_file=credentials_file())
    return url
