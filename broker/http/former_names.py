"""The former names of calls of 0.1, understood until 0.3. All code that knows them is here.

A bulk load was called a transaction. A call at a former path does what today's call does; the
answer has the former words, and `Deprecation: true`. None of this is in /openapi.json.
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
    def __init__(self) -> None:
        self._calls = LogLimiter()

    def routes(self, routes: Iterable[Route]) -> tuple[Route, ...]:
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
    """Rename former headers; today's name wins."""
    given = [(now, was) for now, was in HEADERS.items() if was in call.headers]
    if given:
        headers = CIMultiDict(call.headers)
        for now, was in given:
            headers.setdefault(now, headers[was])
        call.headers = headers
    return bool(given)


def _renamed(body: bytes, names: Mapping[str, str]) -> bytes:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    if not isinstance(found, dict) or not found.keys() & names.keys():
        return body
    return msgspec.json.encode({names.get(key, key): value for key, value in found.items()}) + b"\n"
