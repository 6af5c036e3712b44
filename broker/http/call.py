"""A single HTTP request: its names, its parameters, its body, and their limits.

A handler reads a request only through this class. A malformed, too long, too slow or unknown
request raises a `Problem`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from octavo.broker.errors import SchemaMismatch
from octavo.broker.http.gate import Grant
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.http.request_body import ENCODINGS, Decompressor, in_words
from octavo.broker.types import PartitionName, TopicName, checked_name
from octavo.protocol.numbers import AMOUNT, whole
from octavo.security.principal import Identity
from octavo.security.rules import Kind, Operation, Resource

if TYPE_CHECKING:
    from octavo.broker.http.router import Route
    from octavo.broker.http.services import Services

JSON = "application/json"
NDJSON = "application/x-ndjson"
RECORD_BATCH = "application/vnd.kafka.recordbatch.v2"
CURL_DATA = "application/x-www-form-urlencoded"
"""What `curl -d` sends by default; accepted where only JSON is possible."""
OWNER_HEADER = "Octavo-Owner"
INCARNATION_HEADER = "Octavo-Incarnation"
"""The topic's incarnation: in answers, and in calls that mean only that."""
NEXT_OFFSET_HEADER = "Next-Offset"
JSON_BYTES_MAX = 64 * 1024

_DURATION = re.compile(rf"({AMOUNT})(ms|s|m|h|d)?")
_UNKNOWN_FIELD = re.compile(
    r"Object contains unknown field `.*?`(?: - at `\$(?P<path>.*)`)?", re.DOTALL
)
_STEP = re.compile(r"\.(\w+)|\[[^]]*\]")
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[Tt ](?P<minute>\d\d:\d\d)"
    r"(:(?P<second>\d\d)([.,](?P<fraction>\d{1,30}))?)?"
    r"(?P<zone>[Zz]|[-+ ]\d\d:\d\d)?",
    re.ASCII,
)
_LEAP_SECOND = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT_MS = {"ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7, None: 1e3}
OFFSET_MAX = 2**63 - 1
PARTITION_HIGHEST = 10**9 - 1
PRESSED_STALL_S = 2.0
"""A body that pauses this long, while memory is scarce, loses its place …"""
PACED_FROM_BYTES = 32 * 1024
"""… as does a body that is too slow, but not a smaller body than this …"""
PACE_OVER_S = 4.0
"""… measured over this much waiting time."""

Body = TypeVar("Body")


class Call:
    __slots__ = (
        "_body",
        "_came_bytes",
        "_held_as",
        "_held_bytes",
        "_waited_s",
        "body_is_spent",
        "ends_with",
        "grant",
        "headers",
        "incarnation",
        "is_streaming",
        "messages",
        "owner_url",
        "query",
        "request",
        "route",
        "served_incarnation",
        "services",
        "unpaid",
        "variables",
    )

    def __init__(
        self,
        request: web.BaseRequest,
        route: Route,
        variables: Mapping[str, str],
        query_text: str,
        services: Services,
    ) -> None:
        self.request = request
        self.grant: Grant | None = None
        self.ends_with: Problem | None = None
        self.headers: Mapping[str, str] = request.headers
        self.route = route
        self.variables = variables
        self.services = services
        self.owner_url = services.url
        self.incarnation = request.headers.get(INCARNATION_HEADER)
        self.served_incarnation = ""
        self.query = _parse_query(query_text, route) if query_text else {}
        self.body_is_spent = False
        """Part of the body was read as a stream: the call cannot be repeated."""
        self.is_streaming = False
        """The head of an endless answer was sent: no other answer is possible."""
        self.unpaid = False
        """The body is charged as it arrives: its length is unknown or unused."""
        self.messages = 0
        self._body: bytes | None = None
        self._held_bytes = 0
        self._held_as: tuple[str, ...] = ()
        """The principal whose share counts the held bytes."""
        self._came_bytes = 0
        self._waited_s = 0.0
        """Waiting time; restarts every `PACE_OVER_S`."""

    @property
    def topic(self) -> TopicName:
        return TopicName.of(self.variables["namespace"], self.variables["topic"])

    @property
    def namespace(self) -> str:
        return checked_name("namespace", self.variables["namespace"])

    @property
    def subscription(self) -> str:
        return checked_name("subscription", self.variables["subscription"])

    @property
    def partition(self) -> PartitionName | None:
        text = self.variables.get("partition")
        if text is None:
            return None
        number = whole(text, PARTITION_HIGHEST)
        if number is None:
            raise Problem(
                400, "invalid-partition", f"partition {text[:20]!r} in the path is not a number"
            )
        return self.topic.partition(number)

    @property
    def names_incarnation(self) -> bool:
        return INCARNATION_HEADER in self.request.headers

    @property
    def identity(self) -> Identity:
        assert self.grant is not None, "the gate has let it in"
        return self.grant.identity

    def check(self, operation: Operation, resource: Resource) -> None:
        self.services.gate.check(self.identity, operation, resource, self.peer)

    def may_see(self, kind: Kind, *names: str) -> bool:
        gate = self.services.gate
        if not gate.secured:
            return True
        return gate.may(self.identity, Operation.DESCRIBE, Resource(kind, "/".join(names)))

    def told(self, error: BaseException) -> Problem:
        """Return the problem for this caller, without quoting a schema that is hidden from the
        caller.
        """
        problem = problem_of(error)
        if problem.code != SchemaMismatch.name:
            return problem
        if not self.services.rules.hides_schema(self.identity, self.topic):
            return problem
        index: int | None = problem.extra.get("message_in_batch")
        problem.detail = str(SchemaMismatch("", index).without_reason())
        return problem

    def may_see_some(self, kind: Kind, *names: str) -> bool:
        gate = self.services.gate
        return gate.may_some(self.identity, Resource(kind, "/".join([*names, ""])))

    async def ask_again(self) -> None:
        gate = self.services.gate
        assert self.grant is not None
        if gate.holds(self.grant):
            return
        try:
            self.grant = await gate.admit(self.request, self.route, self.variables)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 429:  # the proof was not checked: check it later
                return
            if problem is error:
                raise
            raise problem from error

    def text(self, name: str, default: str = "") -> str:
        return self.query.get(name, default)

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        text = self.query.get(name)
        if text is None:
            return default
        found = whole(text, most, least)
        if found is None:
            raise bad_parameter(name, text, whole_hint(least, most))
        return found

    def duration_ms(self, name: str, default_ms: int, most_ms: int) -> int:
        """Read seconds, or a number with a unit as in `500ms`."""
        text = self.query.get(name)
        if text is None:
            return default_ms
        found = parse_duration_ms(text)
        if found is None or found > most_ms:
            raise bad_parameter(
                name, text, f"a time of at most {most_ms / 1000:g} s, such as 10, 10s or 500ms"
            )
        return found

    def choice(self, name: str, default: str, *options: str) -> str:
        text = self.query.get(name, default)
        if text not in options:
            raise bad_parameter(name, text, "one of " + ", ".join(options))
        return text

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def body_was_read(self) -> bool:
        return self._body is not None

    async def read_body(self, bytes_max: int | None = None) -> bytes:
        """Read the whole body, once; raise a 413 for a long body, a 408 for a slow body."""
        if self._body is not None:
            return self._body
        config = self.services.config
        bound = min(bytes_max or config.body_bytes_max, config.body_bytes_max)
        announced = self.request.content_length
        if announced is not None and announced > bound:
            raise too_long(announced, bound)
        content = self.request.content
        if content.is_eof() and not self._encoding:
            body = content.read_nowait()
            if len(body) > bound:
                raise too_long(len(body), bound)
            await self.hold(len(body))
        else:
            await self.continue_if_asked()
            body = b"".join(await self._collect(bound))
        self._body = body
        if self.unpaid or len(body) != announced:
            self.services.quotas.paid(self, len(body))
        return body

    def take_body(self, body: bytes) -> None:
        assert self._body is not None
        self._body = body

    @property
    def is_packed(self) -> bool:
        """Whether the body is compressed; raises a 415 for an unknown encoding."""
        return bool(self._encoding)

    @property
    def _encoding(self) -> str:
        found = self.headers.get("Content-Encoding", "").strip().lower()
        if found in ("", "identity"):
            return ""
        if found not in ENCODINGS:
            raise Problem(
                415,
                "unsupported-content-encoding",
                f"Content-Encoding {found[:40]!r} is not understood here; gzip and deflate are",
                headers={"Accept-Encoding": "gzip, deflate"},
            )
        return found

    async def _collect(self, bound: int) -> list[bytes]:
        parts: list[bytes] = []
        size = 0
        inflater = Decompressor(self._encoding) if self._encoding else None
        try:
            async with asyncio.timeout(self.services.config.body_timeout_ms / 1000):
                while chunk := await self._arrived(self.services.config.stall_timeout_ms):
                    for piece in inflater.feed(chunk) if inflater else (chunk,):
                        size += len(piece)
                        if size > bound:
                            raise too_long(None, bound)
                        await self.hold(size)
                        parts.append(piece)
                        if inflater is not None:
                            await asyncio.sleep(0)  # a piece takes a millisecond
            if inflater is not None:
                inflater.finish()
        except TimeoutError:
            raise Problem(
                408,
                "body-too-slow",
                f"the body did not come within {self.services.config.body_timeout_ms} ms, or stood "
                "still, or came too slowly while memory for bodies is scarce; "
                f"{size} bytes were there",
                retryable=True,
                headers={"Connection": "close"},
            ) from None
        return parts

    async def hold(self, size: int) -> None:
        more = size - self._held_bytes
        if not self._held_bytes and self.grant is not None:
            self._held_as = self.services.quotas.sharers(
                self.grant.identity, self.variables.get("namespace", "")
            )
        if more > 0:
            await self.services.held.take(self.peer, more, *self._held_as)
        elif more < 0:
            self.services.held.give_back(self.peer, -more, *self._held_as)
        self._held_bytes = size

    def release(self) -> None:
        if self._held_bytes:
            self.services.held.give_back(self.peer, self._held_bytes, *self._held_as)
            self._held_bytes = 0

    @property
    def peer(self) -> str:
        return self.request.remote or "unknown"

    async def _arrived(self, patience_ms: int) -> bytes:
        """Return new bytes; raise `TimeoutError` when none come or the body loses its place."""
        content = self.request.content
        waited_s, patience_s = 0.0, patience_ms / 1000
        clock = asyncio.get_running_loop().time
        while True:
            turn_s = min(PRESSED_STALL_S, patience_s - waited_s)
            began_s = clock()
            try:
                async with asyncio.timeout(turn_s):
                    came = await content.readany()
            except TimeoutError:
                waited_s += turn_s
                pressed = self._held_bytes > 0 and self.services.held.pressed
                if waited_s >= patience_s or (pressed and waited_s >= PRESSED_STALL_S):
                    raise
                came = b""
            self._check_pace(len(came), clock() - began_s)
            if came or content.at_eof():
                return came

    def _check_pace(self, came_bytes: int, waited_s: float) -> None:
        self._came_bytes += came_bytes
        self._waited_s += waited_s
        if self._waited_s < PACE_OVER_S:
            return
        pace, held = self._came_bytes / self._waited_s, self.services.held
        self._came_bytes, self._waited_s = 0, 0.0
        if self._held_bytes >= PACED_FROM_BYTES and pace < held.pace_least:
            raise TimeoutError

    async def stream_body(self, *, idle_ms: int | None = None) -> AsyncIterator[bytes]:
        """Yield the body in pieces; with `idle_ms`, an empty piece after that time without data."""
        if self._body is not None:  # the body was read for an unreachable owner
            yield self._body
            return
        self.body_is_spent = True
        await self.continue_if_asked()
        inflater = Decompressor(self._encoding) if self._encoding else None
        stall_ms = self.services.config.stall_timeout_ms
        patience_ms = idle_ms or stall_ms
        while True:
            try:
                chunk = await self._arrived(patience_ms)
            except TimeoutError:
                if patience_ms < stall_ms:
                    patience_ms = stall_ms
                    yield b""
                    continue
                raise Problem(
                    408,
                    "body-too-slow",
                    f"the body stood still for {stall_ms} ms, or came too slowly while memory for "
                    "bodies is scarce",
                    retryable=True,
                    headers={"Connection": "close"},
                ) from None
            if not chunk:
                if inflater is not None:
                    inflater.finish()
                return
            await self.ask_again()
            patience_ms = idle_ms or stall_ms
            for piece in inflater.feed(chunk) if inflater else (chunk,):
                yield piece
            await self.services.quotas.came(self, len(chunk))

    async def continue_if_asked(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            writer = self.request.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0  # not part of the answer

    async def read_json(
        self, kind: type[Body], *, required: bool = True, bytes_max: int = JSON_BYTES_MAX
    ) -> Body:
        """Decode the body as JSON; `bytes_max` is for calls with longer bodies than usual."""
        body = await self.read_body(bytes_max)
        if not body.strip():
            if required:
                raise Problem(400, "body-missing", "this call needs a JSON object as its body")
            body = b"{}"
        elif self.content_type not in (JSON, "", CURL_DATA):
            raise Problem(
                415,
                "unsupported-media-type",
                f"this call understands {JSON}, not {self.content_type[:60]}",
                headers={"Accept": JSON},
            )
        return decode_json(body, kind)

    @property
    def client_is_gone(self) -> bool:
        transport = self.request.transport
        return transport is None or transport.is_closing()

    def reply(
        self, value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        return web.Response(
            status=status,
            body=msgspec.json.encode(value) + b"\n",
            content_type=JSON,
            headers=headers,
        )


def decode_json(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        hint = _known_fields(kind, str(error))
        raise Problem(422, "invalid-body", f"{in_words(str(error))}{hint}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, "invalid-json", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "invalid-json", "the JSON body is nested too deeply") from None


def _known_fields(kind: type, error: str) -> str:
    found = _UNKNOWN_FIELD.fullmatch(error)
    if found is None:
        return ""
    at = [msgspec.inspect.type_info(kind)]
    for name in _STEP.findall(found["path"] or ""):
        inside = []
        for one in at:
            if isinstance(one, msgspec.inspect.StructType):
                inside += [of.type for of in one.fields if of.encode_name == name]
            elif not name and isinstance(one, msgspec.inspect.ListType):
                inside.append(one.item_type)
        at = [part for one in inside for part in getattr(one, "types", (one,))]
    names = [
        of.encode_name
        for one in at
        if isinstance(one, msgspec.inspect.StructType)
        for of in one.fields
    ]
    return f"; known here: {', '.join(names)}" if names else ""


def parse_duration_ms(text: str) -> int | None:
    found = _DURATION.fullmatch(text)
    return int(float(found[1]) * _UNIT_MS[found[2]]) if found else None


def parse_time_ms(text: str) -> int | None:
    """Convert an RFC 3339 time to milliseconds since the epoch; None if malformed.

    A leap second becomes the following second. A space in place of the zone's `+` is accepted:
    query strings make it so.
    """
    found = _TIME.fullmatch(text)
    if found is None or found["zone"] is None:
        return None
    second = int(found["second"] or 0)
    millis = int((found["fraction"] or "0")[:3].ljust(3, "0"))
    zone = found["zone"].upper().replace(" ", "+")
    try:
        whole = datetime.fromisoformat(
            f"{found['day']}T{found['minute']}:{min(second, 59):02}{zone.replace('Z', '+00:00')}"
        )
    except ValueError:
        return None
    if second > _LEAP_SECOND:
        return None
    seconds = (whole - _EPOCH) // timedelta(seconds=1)
    return (seconds + second // _LEAP_SECOND) * 1000 + millis


def time_hint(text: str) -> str:
    found = _TIME.fullmatch(text)
    if found is not None and found["zone"] is None:
        return " (a time needs a zone: add Z, or +hh:mm)"
    if found is not None:
        return " (there is no such day, hour or zone)"
    if _DAY.fullmatch(text):
        return f" (a day alone is no time: {text}T00:00:00Z is one)"
    return ""


def whole_hint(least: int, most: int) -> str:
    return f"a whole number from {least} to {most}, in plain digits without a zero in front"


def bad_parameter(name: str, text: str, expected: str) -> Problem:
    return Problem(400, "invalid-parameter", f"{name}={text[:60]!r}: it must be {expected}")


def too_long(
    size: int | None,
    bound: int,
    helps: str = f"split it, stream messages as {NDJSON}, or send one long message to …/large",
) -> Problem:
    has = "is longer than that" if size is None else f"has {size}"
    return Problem(
        413,
        "body-too-long",
        f"a body of this kind may have {bound} bytes, this one {has}; {helps}",
        headers={"Connection": "close"},
        extra={"bytes_max": bound},
    )


def _parse_query(text: str, route: Route) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=64)
    except ValueError as error:
        raise Problem(400, "invalid-query", f"the query string cannot be read: {error}") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in route.query_names:
            if route.any_query:
                continue
            known = ", ".join(sorted(route.query_names)) or "none"
            raise Problem(
                400,
                "unknown-parameter",
                f"this call has no query parameter {name[:60]!r}; it understands: {known}",
            )
        if name in found:
            raise Problem(400, "repeated-parameter", f"query parameter {name!r} is given twice")
        found[name] = value
    return found
