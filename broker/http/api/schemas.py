"""Schemas by subject over HTTP. Any broker answers, from records in the metadata."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from octavo.broker.cluster.schema_registry import GIVEN_BYTES_MAX, SubjectName
from octavo.broker.http.call import Call
from octavo.broker.types import checked_name
from octavo.metadata.schemas import SchemaVersion, SubjectRecord
from octavo.security.principal import ANONYMOUS

Compatibility = Literal[
    "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
    "NONE",
]  # fmt: skip


class SchemaBody(msgspec.Struct, forbid_unknown_fields=True):
    """A schema to register or check."""

    schema_name: ClassVar = "Schema"

    schema: Annotated[Any, Meta(description="as JSON, or as text with JSON")]
    type: Literal["json", "avro"] = "json"


class CompatibilityBody(msgspec.Struct, forbid_unknown_fields=True):
    """The versions with which a new version must be compatible."""

    schema_name: ClassVar = "SchemaCompatibility"

    compatibility: Compatibility


class SchemaShown(msgspec.Struct):
    """One version of a subject."""

    subject: str
    version: int
    id: Annotated[str, Meta(description="equal for equal schemas, in every subject")]
    type: str
    created: Annotated[int, Meta(description="milliseconds since the epoch")]
    schema: Annotated[Any, Meta(description="as JSON")] | UnsetType = UNSET


class SubjectShown(msgspec.Struct):
    """A subject and its versions, oldest first."""

    schema_name: ClassVar = "SchemaSubject"

    subject: str
    compatibility: str
    versions: list[SchemaShown]


class SchemaChecked(msgspec.Struct):
    """Whether a schema may be the next version."""

    compatible: bool
    compatibility: str
    problems: list[str]


async def list_subjects(call: Call) -> web.StreamResponse:
    found = await call.services.broker.schemas.subjects(call.namespace)
    return call.reply({"namespace": call.namespace, "subjects": found})


async def get_subject(call: Call) -> web.StreamResponse:
    name = _name(call)
    return call.reply(_subject(name, await call.services.broker.schemas.subject(name)))


async def put_subject(call: Call) -> web.StreamResponse:
    name = _name(call)
    body = await call.read_json(CompatibilityBody)
    changed = await call.services.broker.schemas.set_compatibility(name, body.compatibility)
    return call.reply(_subject(name, changed))


async def delete_subject(call: Call) -> web.StreamResponse:
    await call.services.broker.schemas.delete(_name(call))
    return web.Response(status=204)


async def register_schema(call: Call) -> web.StreamResponse:
    name = _name(call)
    body = await call.read_json(SchemaBody, bytes_max=GIVEN_BYTES_MAX)
    made = await call.services.broker.schemas.register(name, body.type, body.schema, _caller(call))
    return call.reply(_version(name, made.version), status=201 if made.new else 200)


async def get_schema(call: Call) -> web.StreamResponse:
    name = _name(call)
    found = await call.services.broker.schemas.version(name, call.variables["version"])
    return call.reply(_version(name, found))


async def check_schema(call: Call) -> web.StreamResponse:
    name = _name(call)
    body = await call.read_json(SchemaBody, bytes_max=GIVEN_BYTES_MAX)
    mode, problems = await call.services.broker.schemas.check(
        name, body.type, body.schema, _caller(call)
    )
    return call.reply(SchemaChecked(not problems, mode, problems))


def _caller(call: Call) -> str:
    name = ANONYMOUS.name if call.grant is None else call.grant.identity.name
    return name if name != ANONYMOUS.name else f"{name} at {call.request.remote}"


def _name(call: Call) -> SubjectName:
    return call.namespace, checked_name("schema subject", call.variables["schema_subject"])


def _subject(name: SubjectName, record: SubjectRecord) -> SubjectShown:
    versions = [_version(name, one, shown=False) for one in record.versions]
    return SubjectShown("/".join(name), record.compatibility, versions)


def _version(name: SubjectName, one: SchemaVersion, *, shown: bool = True) -> SchemaShown:
    schema = json.loads(one.text) if shown else UNSET
    return SchemaShown("/".join(name), one.number, one.id, one.type, one.created_ms, schema)
