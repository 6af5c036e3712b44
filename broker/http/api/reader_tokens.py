"""Tokens for those who read a topic's ledgers from the bookies themselves, past the brokers.

Who may consume the topic gets one. It names the topic's ledgers as they are now, reads nothing
else, stops no writer, and ends after ten minutes, or with what its owner has shown for it: the
bookies ask the policy once more, and whether its owner is still known by that.
"""

from __future__ import annotations

import contextlib

from aiohttp import web

from octavo.broker.http.call import Call, bad_parameter
from octavo.broker.http.problems import Problem
from octavo.broker.types import PartitionName
from octavo.metadata.compactions import compacted_ledgers
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import RecordNotFound
from octavo.metadata.together import all_of
from octavo.metadata.topics import TopicStore
from octavo.security.bookie_tokens import BookieTokens, TooManyLedgers


async def issue(call: Call) -> web.StreamResponse:
    """`POST …/reader-token`."""
    info = await call.services.broker.topics.get(call.topic)
    count = info.settings.partitions
    only = call.integer("partition", -1, 0, 2**31)
    if only >= count:
        raise bad_parameter("partition", str(only), f"a partition of the topic, below {count}")
    numbers = range(count) if only < 0 else (only,)
    topics = TopicStore(call.services.store)

    async def of(name: PartitionName) -> set[int]:
        with contextlib.suppress(RecordNotFound):  # nobody has used it yet
            record, _ = await topics.read_partition(*name)
            if not record.deleted and record.incarnation in ("", info.incarnation):
                named = (link.ledger_id for link in record.ledgers)
                return {*named, *compacted_ledgers(record)}
        return set()

    found = await all_of(of(call.topic.partition(number)) for number in numbers)
    ledgers = set().union(*found)
    tokens = BookieTokens(await cluster_secret(call.services.store), call.services.clock)
    try:
        token, expires_at_s = tokens.reader(call.identity, str(call.topic), ledgers)
    except TooManyLedgers as error:
        raise Problem(422, error.name, f"{error}, with ?partition=") from None
    return call.reply(
        {"token": token, "ledgers": sorted(ledgers), "expires_at": expires_at_s * 1000}
    )
