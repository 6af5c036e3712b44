"""Answer errors as RFC 9457 `application/problem+json`, as their classes declare.

Two members are ours: `code`, a stable word for programs, and `retryable`. `detail` names the cause
and what would help. An exception without a status is a bug: a 500, with its trace in the log only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from aiohttp import web

from octavo.broker import errors as broker_errors
from octavo.broker.http import durable
from octavo.broker.operations import kinds
from octavo.protocol.codes import OctavoError
from octavo.security import principal as callers
from octavo.security.identity.failed_logins import LoginsPaused

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
"""When to repeat after a 429 or 503: take-overs end within about a second."""
WAYS_TO_PROVE = 'Bearer realm="octavo", Basic realm="octavo", charset="UTF-8"'

log = structlog.get_logger()


class Problem(OctavoError):
    name = "problem"

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.can_retry = retryable
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def body(self, instance: str | None = None) -> dict[str, Any]:
        members: dict[str, Any] = {
            "type": f"urn:octavo:problem:{self.code}",
            "title": self.code.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": readable(self.detail),
            "code": self.code,
            "retryable": self.can_retry,
        }
        if instance is not None:
            members["instance"] = readable(instance)
        members.update(self.extra)
        return members

    def response(self, instance: str | None = None) -> web.Response:
        answer = web.Response(
            status=self.status,
            body=msgspec.json.encode(self.body(instance)) + b"\n",
            content_type=PROBLEM_TYPE,
            headers=self.headers,
        )
        if self.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            answer.headers.setdefault("Retry-After", str(RETRY_AFTER_S))
        return answer


def readable(text: str) -> str:
    """Spell out bytes that are not UTF-8, so that JSON can hold the text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def problem_of(error: BaseException) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, kinds.Refused):
        return problem_from(error.refusal)
    if isinstance(error, OctavoError):
        return _translate(error)
    if isinstance(error, web.RequestPayloadError):
        return Problem(400, "bad-body", f"the body could not be read: {error}")
    if isinstance(error, TimeoutError):
        return Problem(
            504,
            "deadline-exceeded",
            "a part of the cluster did not answer in time; the call may or may not have taken "
            "effect: read before you repeat it",
            retryable=True,
        )
    log.error("request_failed_unexpectedly", exc_info=error)
    return Problem(
        500,
        "internal-error",
        "this broker met an error that it did not foresee; its log has the trace",
    )


def problem_from(refusal: kinds.Refusal) -> Problem:
    status, code, detail, retryable, headers, extra = msgspec.structs.astuple(refusal)
    return Problem(status, code, detail, retryable=retryable, headers=headers, extra=extra)


def refusal_of(error: BaseException) -> kinds.Refusal:
    problem = problem_of(error)
    extra = msgspec.to_builtins(problem.extra)
    return kinds.Refusal(
        problem.status, problem.code, problem.detail, problem.can_retry, problem.headers, extra
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _translate(error: OctavoError) -> Problem:
    status = error.http_status
    if status is None:
        status = 503 if error.retryable else 500
        log.error("request_failed_without_a_status", error=error.name, exc_info=error)
    extra = {name: _plain(getattr(error, shown)) for name, shown in error.problem_members}
    extra.update(error.members)
    headers = {name: str(getattr(error, shown)) for name, shown in error.problem_headers}
    if isinstance(error, broker_errors.StreamClosed):
        headers[durable.CLOSED_HEADER] = "true"
        headers[durable.OFFSET_HEADER] = durable.offset_text(error.next_offset)
    elif isinstance(error, broker_errors.QuotaExceeded):
        extra["wait_s"] = round(error.wait_s, 3)
        headers["Retry-After"] = str(max(1, math.ceil(error.wait_s)))
        if error.quota == "connections":
            headers["Connection"] = "close"
    elif isinstance(error, LoginsPaused):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    elif isinstance(error, callers.Unauthenticated):
        headers["WWW-Authenticate"] = WAYS_TO_PROVE
    return Problem(
        status,
        error.name,
        str(error) or error.name,
        retryable=error.retryable,
        headers=headers,
        extra=extra,
    )
