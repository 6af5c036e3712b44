"""The former names of calls of 0.1, understood until 0.3. All code that knows them is here.

A bulk load was called a transaction, which means something else in Kafka and Pulsar. A call at a
former path does what today's call does; the answer has the former words, and `Deprecation: true`.
The answer to a call with a former header has today's words, and `Deprecation: true`. Once a minute
the log says how many such calls there were (`former_name_used`). None of this is in /openapi.json.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
import structlog
from aiohttp import web
from multidict import CIMultiDict

from octavo.broker.http.call import Call
from octavo.broker.http.problems import problem_of
from octavo.broker.http.router import Handler, Route
from octavo.protocol.log_limiter import LogLimiter

PATHS = {"/v1/bulk-loads/": "/v1/transactions/"}
HEADERS = {"Bulk-Load-Token": "Transaction-Token"}
FIELDS = {"bulk_load": "transaction"}
"""Renamed fields of bodies and of answers, on the outermost level."""
CODES = {
    "invalid-bulk-load": "invalid-transaction",
    "bulk-load-not-found": "transaction-not-found",
    "bulk-load-aborted": "transaction-aborted",
    "foreign-bulk-load": "foreign-transaction",
    "bulk-load-unfinished": "splice-unfinished",
}
DEPRECATION_HEADER = "Deprecation"
_FIELDS_NOW = {was: now for now, was in FIELDS.items()}

log = structlog.get_logger()


class FormerNames:
    """Makes routes that understand former names, for one server."""

    def __init__(self) -> None:
        self._calls = LogLimiter()

    def routes(self, routes: Iterable[Route]) -> tuple[Route, ...]:
        """Return these routes, and for each renamed route a route at its former path."""
        found: list[Route] = []
        for route in routes:
            if any(one.name in HEADERS for one in route.parameters):
                found.append(replace(route, handler=self._with_headers(route.handler)))
            else:
                found.append(route)
            for path, former in PATHS.items():
                if path in route.path:
                    was = route.path.replace(path, former)
                    found.append(replace(route, path=was, handler=self._in_words(route.handler)))
        return tuple(found)

    def _with_headers(self, handler: Handler) -> Handler:
        async def answer(call: Call) -> web.StreamResponse:
            if not _rename_headers(call):
                return await handler(call)
            self._tell(call)
            return await _marked(handler, call, {})

        return answer

    def _in_words(self, handler: Handler) -> Handler:
        """Wrap `handler` for callers that use the former words."""

        async def answer(call: Call) -> web.StreamResponse:
            self._tell(call)
            _rename_headers(call)
            call.take_body(_renamed(await call.read_body(), _FIELDS_NOW))
            response = await _marked(handler, call, CODES)
            if isinstance(response, web.Response) and isinstance(response.body, bytes):
                response.body = _renamed(response.body, FIELDS)
            return response

        return answer

    def _tell(self, call: Call) -> None:
        if count := self._calls.count(asyncio.get_running_loop().time()):
            log.warning(
                "former_name_used",
                call=f"{call.request.method} {call.route.path}",
                remote=call.request.remote,
                count=count,
            )


async def _marked(handler: Handler, call: Call, codes: Mapping[str, str]) -> web.StreamResponse:
    """Run `handler`; mark its answer or problem as deprecated. A problem gets its former code."""
    try:
        response = await handler(call)
    except ConnectionError:
        raise
    except Exception as error:
        problem = problem_of(error)
        problem.code = codes.get(problem.code, problem.code)
        problem.headers[DEPRECATION_HEADER] = "true"
        if problem is error:
            raise
        raise problem from error
    response.headers[DEPRECATION_HEADER] = "true"
    return response


def _rename_headers(call: Call) -> bool:
    """Rename former headers; return whether there were any. Today's name wins over a former one."""
    given = [(now, was) for now, was in HEADERS.items() if was in call.headers]
    if given:
        headers = CIMultiDict(call.headers)
        for now, was in given:
            headers.setdefault(now, headers[was])
        call.headers = headers
    return bool(given)


def _renamed(body: bytes, names: Mapping[str, str]) -> bytes:
    """Rename the fields of a JSON object; leave other bodies to the handler."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    if not isinstance(found, dict) or not found.keys() & names.keys():
        return body
    return msgspec.json.encode({names.get(key, key): value for key, value in found.items()}) + b"\n"
