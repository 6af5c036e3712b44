"""Tokens for clients that read a topic's ledgers directly from the bookies.

A client that may consume the topic gets a token. It covers the entries that the topic has now: its
ledgers, and only the topic's part of a ledger that is shared with a fork's source or truncated in
the middle. The token allows no other read, stops no writer, and ends after ten minutes, or when the
client's own proof ends: the bookies check the policy again, and whether the client is still known
by that proof. An entry is a batch, and the smallest part: if a topic was forked or truncated within
a batch, the token covers the whole batch.
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from octavo.broker.http.call import Call, bad_parameter
from octavo.broker.http.problems import Problem
from octavo.broker.types import PartitionName
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.read.entry_source import first_entry
from octavo.metadata.compactions import compacted_ledgers
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import RecordNotFound
from octavo.metadata.together import all_of
from octavo.metadata.topics import PartitionLedger, TopicStore
from octavo.protocol.entry import ENTRY_MAX, WHOLE, EntryRange
from octavo.security.bookie_tokens import BookieTokens, TooManyLedgers

LOOKED_AT_ONCE = 16
"""Limit of truncated ledgers in which a call searches at the same time for the first entry."""


async def issue(call: Call) -> web.StreamResponse:
    """`POST …/reader-token`."""
    info = await call.services.broker.topics.get(call.topic)
    count = info.settings.partitions
    only = call.integer("partition", -1, 0, 2**31)
    if only >= count:
        raise bad_parameter("partition", str(only), f"a partition of the topic, below {count}")
    numbers = range(count) if only < 0 else (only,)
    topics = TopicStore(call.services.store)
    turn = asyncio.Semaphore(LOOKED_AT_ONCE)

    async def of(name: PartitionName) -> dict[int, EntryRange]:
        found: dict[int, EntryRange] = {}
        with contextlib.suppress(RecordNotFound):  # the partition was never opened
            record, _ = await topics.read_partition(*name)
            if record.deleted or record.incarnation not in ("", info.incarnation):
                return {}
            for link in record.ledgers:
                if entries := await _entries_of(call, link, record.trimmed_offset, turn):
                    found[link.ledger_id] = entries
            found.update(dict.fromkeys(compacted_ledgers(record), WHOLE))
        return found

    found: dict[int, EntryRange] = {}
    for some in await all_of(of(call.topic.partition(number)) for number in numbers):
        found.update(some)
    parts = {one: entries for one, entries in found.items() if entries != WHOLE}
    tokens = BookieTokens(await cluster_secret(call.services.store), call.services.clock)
    try:
        token, expires_at_s = tokens.reader(
            call.identity, str(call.topic), found.keys() - parts.keys(), parts=parts
        )
    except TooManyLedgers as error:
        raise Problem(422, error.name, f"{error}, with ?partition=") from None
    return call.reply(
        {
            "token": token,
            "ledgers": sorted(found),
            "parts": {
                str(one): [entries.first, None if entries.last == ENTRY_MAX else entries.last]
                for one, entries in sorted(parts.items())
            },
            "expires_at": expires_at_s * 1000,
        }
    )


async def _entries_of(
    call: Call, link: PartitionLedger, trimmed_to: int, turn: asyncio.Semaphore
) -> EntryRange | None:
    """Return the entries of a ledger that belong to the partition; None: there are none."""
    last = link.cut if link.cut >= 0 else ENTRY_MAX
    start = trimmed_to - link.base_offset
    if start <= 0:
        return EntryRange(0, last)
    if link.count is not None and start >= link.count:
        return None
    if link.pieces:
        return EntryRange(start, last)  # each record of these is an entry
    async with turn:
        first = await _entry_with(call, link.ledger_id, start)
    return None if first is None or first > last else EntryRange(first, last)


async def _entry_with(call: Call, ledger_id: int, offset: int) -> int | None:
    """Return the entry with this offset, counted from the ledger's first message.

    None: the ledger is gone, or is not known to reach that far; its reader needs another token
    later.
    """
    try:
        reader = await call.services.ledgers.open(ledger_id)
    except LedgerNotFound:
        return None
    try:
        end = await reader.refresh()
        return await first_entry(reader, end, lambda header: header.next_offset > offset)
    finally:
        await reader.close()
