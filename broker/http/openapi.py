"""`/openapi.json`: OpenAPI 3.1, made from the same table that routes requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from octavo.broker.http.api.answers import ProblemBody
from octavo.broker.http.call import JSON, Call
from octavo.broker.http.needs import Needs
from octavo.broker.http.problems import PROBLEM_TYPE
from octavo.broker.http.router import Answer, Content, Parameter, Route, Struct
from octavo.broker.http.schemas import components, ref

VERSION = "1"
_TAGS = {
    "topics": "Namespaces and topics",
    "schemas": "Schemas of messages, by subject",
    "messages": "Publish and read",
    "streams": "Topics as durable streams: the Durable Streams protocol",
    "subscriptions": "Consume with a durable cursor",
    "bulk-loads": "Ledgers written beforehand, added to many partitions at once",
    "cluster": "Ledgers and nodes",
    "health": "Health, metrics, documents",
}
_ALWAYS = (400, 500, 503)
_REASONS = {
    400: "Malformed: the detail says what and where",
    401: "The cluster is secured, and the caller's credentials are missing or wrong",
    403: "Not allowed, or an older instance of the producer",
    404: "It does not exist",
    406: "None of the accepted media types is available",
    408: "The body did not come in time",
    409: "It conflicts with what exists",
    410: "Retention has removed it; `earliest_offset` is the first one left",
    412: "Another publish came first; `next_offset` is the end now",
    413: "Too long; `bytes_max` is the limit",
    415: "The media type is not understood",
    416: "Beyond the end; `next_offset` will be the next one",
    422: "Well-formed, but it makes no sense or is not supported yet",
    429: "Too much at once: come back after `Retry-After` seconds",
    500: "A mistake in the broker; its log has the trace",
    503: "Moving, or not enough bookies: come back after `Retry-After` seconds",
    504: "Outcome unknown: repeat it with the same producer sequence",
}


_RECORDS = 200
"""Sending 300 kB, in messages of work: callers take turns."""


async def openapi(call: Call) -> web.StreamResponse:
    await call.services.broker.open_batches.turns.take(_RECORDS)
    return web.Response(body=call.services.openapi, content_type=JSON)


def encoded(routes: Iterable[Route]) -> bytes:
    return msgspec.json.encode(document(routes)) + b"\n"


def document(routes: Iterable[Route]) -> dict[str, Any]:
    routes = tuple(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Octavo",
            "version": VERSION,
            "description": (
                "A replicated log over HTTP. Any broker answers any call; `Octavo-Owner` in the "
                "answer is the broker that serves the partition: call it directly next time. "
                "The status is 2xx only when everything is durable."
            ),
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components([ProblemBody, *_structs(routes)]),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
                "certificate": {"type": "mutualTLS"},
            },
            "responses": {
                "Problem": {
                    "description": "RFC 9457 problem",
                    "content": {PROBLEM_TYPE: {"schema": ref(ProblemBody)}},
                }
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.summary,
    }
    if route.description:
        found["description"] = route.description
    if route.parameters:
        found["parameters"] = [_parameter(one) for one in route.parameters]
    if route.body:
        found["requestBody"] = {"required": route.body_required, "content": _contents(route.body)}
    responses = {str(answer.status): _answer(answer) for answer in route.answers}
    if not route.needs.is_open:
        found["x-octavo-needs"] = _needs(route.needs)
        found["security"] = [{one: []} for one in ("bearer", "basic", "certificate")] + [{}]
    asked = () if route.needs.is_open else (401, 403)
    for status in sorted({*route.problems, *_ALWAYS, *asked}):
        responses[str(status)] = {
            "description": _REASONS.get(status, HTTPStatus(status).phrase),
            "content": {PROBLEM_TYPE: {"schema": ref(ProblemBody)}},
        }
    found["responses"] = responses
    return found


def _needs(needs: Needs) -> list[str]:
    if needs.is_inner:
        return ["a broker of the cluster"]
    found = [
        str(one) if one.instead is None else f"{one}, or {one.instead}" for one in needs.rights
    ]
    return [*found, "produce on each topic of the body"] if needs.in_body else found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "required": parameter.required or parameter.place == "path",
        "schema": dict(parameter.schema),
    }
    if parameter.example is not None:
        found["example"] = parameter.example
    return found


def _answer(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {"description": answer.description}
    if answer.contents:
        found["content"] = _contents(answer.contents)
    if answer.headers:
        found["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in answer.headers.items()
        }
    return found


def _contents(contents: tuple[Content, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for content in contents:
        found[content.media_type] = {"schema": _described(content.schema)}
        if content.example is not None:
            found[content.media_type]["example"] = content.example
    return found


def _described(schema: Any) -> Any:
    if isinstance(schema, type):
        return ref(schema)
    if isinstance(schema, Mapping):
        return {key: _described(value) for key, value in schema.items()}
    return [_described(one) for one in schema] if isinstance(schema, list) else schema


def _structs(routes: Iterable[Route]) -> Iterator[Struct]:
    for route in routes:
        for contents in (route.body, *(answer.contents for answer in route.answers)):
            for content in contents:
                yield from _in_schema(content.schema)


def _in_schema(schema: Any) -> Iterator[Struct]:
    if isinstance(schema, type):
        yield schema
    elif isinstance(schema, Mapping | list):
        for part in schema.values() if isinstance(schema, Mapping) else schema:
            yield from _in_schema(part)
