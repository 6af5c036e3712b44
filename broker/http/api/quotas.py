"""Quotas over HTTP, at any broker, for administrators without access to the metadata.

The answers show the limits in force (security/limits.py); all brokers follow a change within
seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from octavo.broker.http.call import Call
from octavo.security.limits import NAMES, Quota
from octavo.security.quotas import (
    QuotasRecord,
    checked_subject,
    quota_store,
    quotas_of,
    with_quota,
    without_quota,
)

Amount = Annotated[int, Meta(ge=-1, le=2**53, description="-1: without a bound")]


class QuotaBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What one user or namespace may do: a second, and at once. What is left out is the default."""

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
    """The quota of one subject, as it is set."""

    subject: str = ""


class Quotas(msgspec.Struct):
    """All quotas, by subject."""

    quotas: list[QuotaSet]


class QuotaShown(msgspec.Struct):
    """One subject's: what is set for it, and what holds, with the defaults of its kind."""

    subject: str
    set: QuotaBody
    holds: QuotaBody


async def list_quotas(call: Call) -> web.StreamResponse:
    """`GET /v1/quotas`."""
    record = await _read(call)
    return call.reply(Quotas([QuotaSet(subject=one.subject, **one.said) for one in record.quotas]))


async def get_quota(call: Call) -> web.StreamResponse:
    """`GET /v1/quotas/{subject}`."""
    return call.reply(_shown(await _read(call), _subject(call)))


async def put_quota(call: Call) -> web.StreamResponse:
    """`PUT /v1/quotas/{subject}`: instead of what was set for it."""
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
    """`DELETE /v1/quotas/{subject}`."""
    subject = _subject(call)
    await quota_store(call.services.store).change(lambda record: without_quota(record, subject))
    return web.Response(status=204)


def _subject(call: Call) -> str:
    """Return the subject in the path. Raises `InvalidQuota`."""
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
