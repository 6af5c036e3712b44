"""Security over HTTP: the policy, quotas, and tokens for readers of a topic's ledgers.

The policy is replaced as a whole, with `If-Match`, so that an administrator overwrites no unseen
change. Securing a cluster, or ending that, needs access to its metadata (`octavo security`): else
the first caller could take an open cluster over.

A client that may consume a topic gets a token to read its ledgers from the bookies. It covers the
topic's present entries: of shared or truncated ledgers only the topic's part, in whole batches. It
ends after ten minutes, or when the client's own proof or right does.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from octavo.broker.http.call import Call, bad_parameter
from octavo.broker.http.problems import Problem
from octavo.broker.log.open_batches import Turns
from octavo.broker.types import PartitionName
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.read.entry_source import first_entry
from octavo.metadata.compactions import compacted_ledgers
from octavo.metadata.gather_all import gather_all
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import RecordNotFound
from octavo.metadata.topics import PartitionLedger, TopicStore
from octavo.protocol.entry import ENTRY_MAX, WHOLE, EntryRange
from octavo.security.bookie_tokens import BookieTokens, TooManyLedgers
from octavo.security.identity.users import UserStore, groups_of
from octavo.security.limits import NAMES, Quota
from octavo.security.policy import (
    PolicyRecord,
    PolicyStore,
    make_rule,
    policy_in_turns,
    record_of,
    rule_record,
)
from octavo.security.principal import checked_principal
from octavo.security.quotas import (
    QuotasRecord,
    checked_subject,
    quota_store,
    quotas_of,
    with_quota,
    without_quota,
)
from octavo.security.rules import CLUSTER, Operation

RULES_MAX = 10_000
"""Bounds roles, too: every process has them in memory, and a record is limited to 1 MB."""
POLICY_BYTES_MAX = 2 * 1024 * 1024


class PolicyRule(msgspec.Struct, forbid_unknown_fields=True):
    """Rights of a principal, or denials, in the words of `octavo acl`."""

    effect: Literal["allow", "deny"]
    principal: str
    operations: Annotated[str, Meta(description="with commas, or all")]
    resource: str


class PolicyRole(msgspec.Struct, forbid_unknown_fields=True):
    """A role of a user or group."""

    principal: str
    role: str


class PolicyBody(msgspec.Struct, forbid_unknown_fields=True):
    """All rules and roles."""

    schema_name: ClassVar = "Policy"

    rules: Annotated[list[PolicyRule], Meta(max_length=RULES_MAX)]
    roles: Annotated[list[PolicyRole], Meta(max_length=RULES_MAX)] = []


class PolicyShown(PolicyBody):
    """The policy in force; `ETag` has its version."""

    secured: bool = False


async def get_policy(call: Call) -> web.StreamResponse:
    return _answer(call, *await PolicyStore(call.services.store).read_record())


class UserGroups(msgspec.Struct):
    """The groups in a user's record; a token may name others."""

    groups: list[str]


async def get_user_groups(call: Call) -> web.StreamResponse:
    name = call.variables["user"]
    checked_principal(f"user:{name}", "user")
    record = await UserStore(call.services.store).read(name)
    found = frozenset() if record is None else groups_of(record.groups)
    return call.reply(UserGroups(sorted(found)))


async def put_policy(call: Call) -> web.StreamResponse:
    body = await call.read_json(PolicyBody, bytes_max=POLICY_BYTES_MAX)
    policies = PolicyStore(call.services.store)
    seen, version = await policies.read_record()
    if not seen.secured:
        raise Problem(
            409,
            "not-secured",
            "this cluster is not secured; securing it needs access to its metadata: "
            "`octavo security secure --admin user:NAME --metadata URL`",
        )
    if call.headers.get("If-Match", "").strip() != _tag(version):
        raise Problem(
            412,
            "policy-changed",
            f"If-Match must be {_tag(version)}, the ETag of the policy to replace: "
            "read the policy again, and decide again",
            headers={"ETag": _tag(version)},
        )
    wanted = await _record(body, seen, call.services.broker.open_batches.turns)
    decision = (await policy_in_turns(wanted)).decide(call.identity, Operation.ADMIN, CLUSTER)
    if not decision.allowed:
        raise Problem(
            422,
            "shut-out",
            f"with this policy {call.identity.name} could not change it again: {decision.reason}",
        )

    def change(record: PolicyRecord) -> PolicyRecord:
        if record not in (seen, wanted):  # `wanted`: the answer was lost
            raise Problem(412, "policy-changed", "the policy was changed meanwhile: read it again")
        return wanted

    await policies.change(change)
    return _answer(call, *await policies.read_record())


async def _record(body: PolicyBody, seen: PolicyRecord, turns: Turns) -> PolicyRecord:
    rules = []
    for one in body.rules:
        await turns.take(1)
        rule = make_rule(one.principal, one.operations, one.resource, allow=one.effect == "allow")
        rules.append(rule_record(rule))
    return record_of(rules, [(one.principal, one.role) for one in body.roles], extra=seen.extra)


def _answer(call: Call, record: PolicyRecord, version: int) -> web.Response:
    shown = PolicyShown(
        rules=[
            PolicyRule(
                "allow" if one.allow else "deny", one.principal, one.operations, one.resource
            )
            for one in record.rules
        ],
        roles=[PolicyRole(one.principal, one.role) for one in record.roles],
        secured=record.secured,
    )
    return call.reply(shown, headers={"ETag": _tag(version)})


def _tag(version: int) -> str:
    return f'"{version}"'


Amount = Annotated[int, Meta(ge=-1, le=2**53, description="-1: no limit")]


class QuotaBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of a user or namespace: per second, and at once; omitted: the default."""

    schema_name: ClassVar = "Quota"

    requests: Amount | UnsetType = UNSET
    publish_bytes: Amount | UnsetType = UNSET
    publish_messages: Amount | UnsetType = UNSET
    read_bytes: Amount | UnsetType = UNSET
    read_messages: Amount | UnsetType = UNSET
    connections: Amount | UnsetType = UNSET
    streams: Amount | UnsetType = UNSET
    topics: Amount | UnsetType = UNSET
    processor_ms: Amount | UnsetType = UNSET
    memory: Amount | UnsetType = UNSET
    groups: Amount | UnsetType = UNSET
    subscriptions: Amount | UnsetType = UNSET


class QuotaSet(QuotaBody, omit_defaults=True):
    """The quota that is set for a subject."""

    subject: str = ""


class Quotas(msgspec.Struct):
    """All quotas, by subject."""

    quotas: list[QuotaSet]


class QuotaShown(msgspec.Struct):
    """The limits that are set, and the limits in force, with the defaults."""

    subject: str
    set: QuotaBody
    holds: QuotaBody


async def list_quotas(call: Call) -> web.StreamResponse:
    record = await _read(call)
    return call.reply(Quotas([QuotaSet(subject=one.subject, **one.said) for one in record.quotas]))


async def get_quota(call: Call) -> web.StreamResponse:
    return call.reply(_shown(await _read(call), _subject(call)))


async def put_quota(call: Call) -> web.StreamResponse:
    subject = _subject(call)
    body = await call.read_json(QuotaBody)
    amounts: dict[str, Any] = {
        name: amount for name in NAMES if (amount := getattr(body, name)) is not UNSET
    }

    def make(record: QuotasRecord) -> QuotasRecord:
        return with_quota(without_quota(record, subject, NAMES), subject, amounts)

    record, _ = await quota_store(call.services.store).change(make)
    return call.reply(_shown(record, subject))


async def delete_quota(call: Call) -> web.StreamResponse:
    subject = _subject(call)
    await quota_store(call.services.store).change(lambda record: without_quota(record, subject))
    return web.Response(status=204)


def _subject(call: Call) -> str:
    return checked_subject(call.variables["subject"])


async def _read(call: Call) -> QuotasRecord:
    record, _ = await quota_store(call.services.store).read()
    return record


def _shown(record: QuotasRecord, subject: str) -> QuotaShown:
    own = record.of(subject)
    said = {} if own is None else own.said
    return QuotaShown(subject, QuotaBody(**said), _body(quotas_of(record).of(subject)))


def _body(quota: Quota) -> QuotaBody:
    return QuotaBody(**quota.said)


LOOKED_AT_ONCE = 16


async def issue(call: Call) -> web.StreamResponse:
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
    for some in await gather_all(of(call.topic.partition(number)) for number in numbers):
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
    """Return the entry that holds the offset; None if the ledger is gone or shorter."""
    try:
        reader = await call.services.ledgers.open(ledger_id)
    except LedgerNotFound:
        return None
    try:
        end = await reader.refresh()
        return await first_entry(reader, end, lambda header: header.next_offset > offset)
    finally:
        await reader.close()
