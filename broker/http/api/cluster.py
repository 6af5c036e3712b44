"""The cluster seen from one broker: ledgers, bookies, brokers, health, metrics, the API itself.

Calls that move partitions are here too: a drain goes to the broker that it names, an unload to the
partition's owner.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from typing import Any

from aiohttp import web
from msgspec import UNSET, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.cluster.in_use import FORCED_EVERY_S, in_use, user_of
from octavo.broker.http.api import answers
from octavo.broker.http.api.answers import Ledger, LedgerFragment
from octavo.broker.http.call import OFFSET_MAX, Call, bad_parameter, whole_hint
from octavo.broker.http.csrf import PAGE_HEADERS
from octavo.broker.http.forwarding import (
    all_or_raise,
    ask_all,
    operate,
    redirected,
    topic_of,
)
from octavo.broker.http.overview import ROWS_SHOWN_MAX, Down, Seen, page
from octavo.broker.http.problems import Problem, problem_from
from octavo.broker.operations.kinds import Drain, Drained, Refused, Unload, Unloaded
from octavo.broker.types import PartitionName, PartitionStats
from octavo.ledger.encryption import wrapped_of
from octavo.ledger.errors import BeyondLastConfirmed
from octavo.ledger.recover.events import RecoveryEvent
from octavo.metadata.bookies import BookieInfo
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.batch import BatchHeader, InvalidBatch, read_header
from octavo.protocol.numbers import whole
from octavo.security.keys.errors import KeyMissing
from octavo.security.rules import Kind

OCTETS = "application/octet-stream"
LEDGERS_SHOWN_MAX = 10_000
_WAY_OUT = f"To do it all the same: ?force=true, once in {FORCED_EVERY_S:g} s"


async def list_ledgers(call: Call) -> web.StreamResponse:
    after = call.integer("after", -1, -1, OFFSET_MAX)
    limit = call.integer("limit", 1000, 1, LEDGERS_SHOWN_MAX)
    listed = await call.services.overview.prompt(call.services.ledgers.list())
    found = sorted(number for number in listed if number > after)
    more = len(found) > limit
    return call.reply({"ledgers": found[:limit], "more": more})


async def get_ledger(call: Call) -> web.StreamResponse:
    ledger_id = _number(call, "ledger")
    asked = call.services.ledgers.metadata(ledger_id)
    return call.reply(show_ledger(await call.services.overview.prompt(asked)))


async def get_entry(call: Call) -> web.StreamResponse:
    ledger_id, entry_id = _number(call, "ledger"), _number(call, "entry")
    wants_octets = OCTETS in call.headers.get("Accept", "").lower()
    reader = await call.services.ledgers.open(ledger_id)
    encrypted: str | None = None
    try:
        wrapped = wrapped_of(reader.metadata)
        encrypted = None if wrapped is None else wrapped.key_name
        entries = await reader.read(entry_id, entry_id)
    except KeyMissing as error:
        if wants_octets:
            raise
        return call.reply(
            {
                "ledger": ledger_id,
                "entry": entry_id,
                "encrypted": encrypted,
                "unreadable": str(error),
            }
        )
    except BeyondLastConfirmed as error:
        raise Problem(
            404,
            "no-such-entry",
            f"ledger {ledger_id} has no entry {entry_id}: {error}",
        ) from None
    finally:
        await reader.close()
    payload = bytes(entries[0].payload)
    if wants_octets:
        return web.Response(body=payload, content_type=OCTETS)
    return call.reply(
        {
            "ledger": ledger_id,
            "entry": entry_id,
            "last_add_confirmed": entries[0].last_add_confirmed,
            "length": entries[0].length,
            "payload_bytes": len(payload),
            "encrypted": encrypted,
            "batch": _show_batch(payload),
            "payload_base64": payload,
        }
    )


async def recover_ledger(call: Call) -> web.StreamResponse:
    ledger_id = _number(call, "ledger")
    is_forced = call.choice("force", "false", "false", "true") == "true"
    ledgers, door = call.services.ledgers, call.services.recoveries
    found = await ledgers.metadata(ledger_id)
    if found.state is LedgerState.CLOSED:
        return call.reply(show_ledger(found, []))
    user = await user_of(call.services.store, found)
    if user is not None and not is_forced:
        raise in_use(found, user, _WAY_OUT)
    now_s = asyncio.get_running_loop().time()
    with door.entered(now_s):
        if user is not None:
            door.force(now_s)
        steps: list[dict[str, Any]] = []
        metadata = await ledgers.recover(
            ledger_id, observe=lambda event: steps.append(_show_step(event))
        )
    return call.reply(show_ledger(metadata, steps))


def show_ledger(
    metadata: LedgerMetadata, steps: list[dict[str, Any]] | UnsetType = UNSET
) -> Ledger:
    closed = metadata.state is LedgerState.CLOSED
    return Ledger(
        id=metadata.ledger_id,
        state=metadata.state.name,
        ensemble_size=metadata.ensemble_size,
        write_quorum=metadata.write_quorum,
        ack_quorum=metadata.ack_quorum,
        digest_type=metadata.digest_type.name,
        created=metadata.created_ms,
        last_entry=metadata.last_entry if closed else None,
        length=metadata.length if closed else None,
        fragments=[
            LedgerFragment(fragment.first_entry, list(fragment.bookies))
            for fragment in metadata.fragments
        ],
        custom={name: value.decode("utf-8", "replace") for name, value in metadata.custom.items()},
        steps=steps,
    )


def _show_step(event: RecoveryEvent) -> dict[str, Any]:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return {"step": event.step, "event": name, **asdict(event)}


def _show_batch(payload: bytes) -> dict[str, Any] | None:
    try:
        header: BatchHeader = read_header(payload)
    except InvalidBatch:
        return None
    return header._asdict()


def _number(call: Call, name: str) -> int:
    text = call.variables[name]
    found = whole(text)
    if found is None:
        raise bad_parameter(name, text, whole_hint(0, OFFSET_MAX))
    return found


async def list_bookies(call: Call) -> web.StreamResponse:
    seen = await call.services.overview.look()
    if seen.bookies is None:
        raise MetadataUnavailable("the bookies have not been read yet since this broker started")
    shown = {"bookies": _bookies(seen.bookies), "bookies_down": _down(seen.down)}
    return call.reply({**shown, "stale": _stale(seen, "bookies")})


def _stale(seen: Seen, *shown: str) -> dict[str, Any] | None:
    """Return the `shown` parts that may be out of date, and since when."""
    names = [name for name in seen.stale if name in shown]
    return {"what": names, "since": seen.stale_since_ms} if names else None


def _bookies(found: dict[str, BookieInfo]) -> list[dict[str, Any]]:
    return [
        {
            "id": info.bookie_id,
            "host": info.host,
            "port": info.port,
            "read_only": info.read_only,
            "properties": dict(info.properties),
        }
        for _, info in sorted(found.items())
    ]


def _down(found: list[Down] | None) -> list[dict[str, Any]]:
    return [
        {
            "id": one.bookie_id,
            "host": None if one.info is None else one.info.host,
            "port": None if one.info is None else one.info.port,
            "missing_since": one.since_ms,
        }
        for one in found or ()
    ]


def standing_of(call: Call, broker_id: str) -> dict[str, Any]:
    broker = call.services.broker
    age_s: float | None = 0.0
    if broker_id == broker.broker_id:
        standing = broker.standing()
    else:
        standings = broker.registry.statuses
        standing, age_s = standings.of(broker_id), standings.age_s(broker_id)
    return {
        "draining": standing.draining,
        "partitions": standing.partitions,
        "load": standing.load,
        "age": None if age_s is None else round(age_s, 1),
    }


def _brokers(call: Call) -> list[dict[str, Any]]:
    broker = call.services.broker
    return [
        {
            "id": one.broker_id,
            "url": one.url,
            "self": one.broker_id == broker.broker_id,
            **standing_of(call, one.broker_id),
        }
        for one in broker.registry.brokers()
    ]


def _gone(call: Call) -> list[dict[str, Any]]:
    now_s, now_ms = asyncio.get_running_loop().time(), call.services.clock()
    return [
        {
            "id": one.info.broker_id,
            "url": one.info.url,
            "missing_since": now_ms - int(1000 * (now_s - one.since_s)),
        }
        for one in call.services.broker.registry.gone()
    ]


async def list_brokers(call: Call) -> web.StreamResponse:
    return call.reply({"brokers": _brokers(call), "brokers_gone": _gone(call)})


async def get_cluster(call: Call) -> web.StreamResponse:
    return call.reply(await cluster_figures(call))


async def confirm_clock(call: Call) -> web.StreamResponse:
    return call.reply(show_clock(await call.services.broker.confirm_clock()))


def show_clock(time: DeletionTime | None) -> dict[str, Any]:
    if time is None:
        return {"deletion_time": None, "late_ms": 0, "doubt": "the metadata store has not answered"}
    return {"deletion_time": time.now_ms, "late_ms": time.late_ms, "doubt": time.doubt or None}


async def cluster_figures(call: Call) -> dict[str, Any]:
    services = call.services
    broker = services.broker
    seen = await services.overview.look()

    def sees(topic: str) -> bool:
        return call.may_see(Kind.TOPIC, topic)

    return {
        "broker_id": broker.broker_id,
        "metadata": {
            "url": services.store.url,
            "session": services.store.session_state.value,
            "out_of_reach_since": services.overview.out_of_reach_since_ms or None,
        },
        "stale": _stale(seen, "bookies", "brokers", "topics"),
        "clock": show_clock(broker.deletion_time()),
        "brokers": _brokers(call),
        "brokers_gone": _gone(call),
        "bookies": None if seen.bookies is None else _bookies(seen.bookies),
        "bookies_down": None if seen.down is None else _down(seen.down),
        "topics": None if seen.topics is None else [one for one in seen.topics if sees(one)],
        "partitions_here": sorted(
            str(one.name)
            for one in broker.ownership.open_partitions()
            if sees(str(one.name.topic_name))
        ),
        "partitions_to_move": {
            str(name): successor
            for name, successor in sorted(broker.balance.to_move().items())
            if sees(str(name.topic_name))
        },
    }


async def healthz(call: Call) -> web.StreamResponse:
    return call.reply({"status": "ok", "broker_id": call.services.broker.broker_id})


async def readyz(call: Call) -> web.StreamResponse:
    services = call.services
    reasons = []
    if services.leaving:
        reasons.append("it is stopping")
    elif not services.ready:
        reasons.append("it is starting")
    if since_ms := services.overview.out_of_reach_since_ms:
        # Anonymous callers of a secured cluster do not get the metadata's address; the log has it.
        where = "" if services.gate.secured else f" at {services.store.url}"
        reasons.append(
            f"the metadata store{where} is out of reach "
            f"(session {services.store.session_state.value}) for "
            f"{max(services.clock() - since_ms, 0) / 1000:.1f} s"
        )
    if reasons:
        raise Problem(
            503, "not-ready", f"this broker is not ready: {'; '.join(reasons)}", retryable=True
        )
    return call.reply({"status": "ready", "broker_id": services.broker.broker_id})


_RECORDS_OF_METRICS = 200
_RECORDS_OF_A_ROW = 5


async def metrics(call: Call) -> web.StreamResponse:
    await call.services.broker.open_batches.turns.take(_RECORDS_OF_METRICS)
    return web.Response(
        body=await call.services.metrics.text(),
        headers={"Content-Type": CONTENT_TYPE_LATEST},
    )


async def status_page(call: Call) -> web.StreamResponse:
    figures = await cluster_figures(call)
    partitions: list[PartitionStats] = []
    more = 0
    for one in call.services.broker.ownership.open_partitions():
        await call.services.broker.open_batches.turns.take(_RECORDS_OF_A_ROW)
        if not call.may_see(Kind.TOPIC, str(one.name.topic_name)):
            continue
        if len(partitions) < ROWS_SHOWN_MAX:
            partitions.append(await one.stats())
        else:
            more += 1
    return web.Response(
        text=page(figures, partitions, more, call.services.url, call.services.clock()),
        content_type="text/html",
        headers={**PAGE_HEADERS, "Cache-Control": "no-store"},
    )


async def drain_broker(call: Call) -> web.StreamResponse:
    return await _at_broker(call, draining=True)


async def undrain_broker(call: Call) -> web.StreamResponse:
    return await _at_broker(call, draining=False)


async def _at_broker(call: Call, *, draining: bool) -> web.StreamResponse:
    broker = call.variables["broker"]
    try:
        found = await call.services.operations.at_broker(
            call, call.identity, Drain(broker, draining)
        )
    except Refused as error:
        raise problem_from(error.refusal) from error
    assert isinstance(found, Drained)
    return call.reply(answers.Drained(broker, found.draining, found.partitions))


async def unload_topic(call: Call) -> web.StreamResponse:
    info = await topic_of(call)
    to = call.text("to")
    _check_live(call, to)

    async def one(name: PartitionName) -> answers.Unloaded:
        return await _unload(call, name, to, is_part=True)

    names = [info.name.partition(number) for number in range(info.settings.partitions)]
    at_once = call.services.broker.config.drain_moves_max
    moved = []
    for start in range(0, len(names), at_once):
        some = names[start : start + at_once]
        moved += all_or_raise(await ask_all([one(name) for name in some]))
    return call.reply(answers.UnloadedAll(moved))


async def unload_partition(call: Call) -> web.StreamResponse:
    name = call.partition
    assert name is not None
    to = call.text("to")
    _check_live(call, to)

    if (elsewhere := await redirected(call, name)) is not None:
        return elsewhere
    return call.reply(await _unload(call, name, to))


async def _unload(
    call: Call, name: PartitionName, to: str, *, is_part: bool = False
) -> answers.Unloaded:
    moved = await operate(call, Unload(name, to), Unloaded, is_part=is_part)
    return answers.Unloaded(name.partition, moved.from_broker, moved.to_broker)


def _check_live(call: Call, to: str) -> None:
    registry = call.services.broker.registry
    if to and to not in {one.broker_id for one in registry.brokers()}:
        raise registry.no_such_broker(to)


async def connect(call: Call) -> web.StreamResponse:
    return await call.services.door.accept(call)
