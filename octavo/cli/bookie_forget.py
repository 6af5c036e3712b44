"""`octavo bookie forget`."""

from __future__ import annotations

import asyncio
import random
from typing import Annotated

import typer

from octavo.cli.options import Data, Metadata, metadata_url
from octavo.cli.output import say

BookieId = Annotated[
    str, typer.Argument(metavar="BOOKIE", help="Its id, as `octavo bookies` shows it.")
]


def forget(bookie_id: BookieId, metadata: Metadata = None, data: Data = None) -> None:
    """Forget a bookie that is gone for good: `octavo bookies` stops listing it.

    Fails while the bookie is up, or a ledger names it; `octavo bookie copies` shows the progress.

    \b
    Example:
      octavo bookie forget bookie-7 --metadata zk://127.0.0.1:2181/octavo
    """
    asyncio.run(_forget(metadata_url(metadata, data), bookie_id))
    say(f"forgot {bookie_id}; a new bookie with empty folders may use that id")


async def _forget(url: str, bookie_id: str) -> None:
    from octavo.credentials import certificates, credentials_file
    from octavo.ledger.rereplication.forgetting import forget_bookie
    from octavo.logs import configure_logging
    from octavo.metadata.bookies import BookieRegistry
    from octavo.metadata.ledgers import LedgerStore
    from octavo.metadata.opening import open_store

    configure_logging(form="console", level="error")
    store = open_store(url, credentials_file=credentials_file(), tls=certificates())
    await store.start()
    try:
        ledgers = LedgerStore(store, rng=random.SystemRandom())
        await forget_bookie(BookieRegistry(store), ledgers, bookie_id)
    finally:
        await store.close()
