"""Brokers' durable streams in the simulator: the production handlers, called between processes.

A call is a `Request`. `answer` runs its method's handler at a broker, which forwards it to the
owner or asks another broker, as its `Peers` would, with the same headers on the way back. Sockets,
routing, permissions and quotas are left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from octavo.broker.errors import NotOwner, OwnerUnreachable, PartitionMoving, TopicChanged
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http import durable
from octavo.broker.http.api import durable_making, durable_reads, durable_streams
from octavo.broker.http.broker_calls import INCARNATION_HEADER
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.forwarding import Reply, _problem_from
from octavo.broker.http.problems import Problem, problem_of, refusal_of
from octavo.broker.operations.asking import Operations
from octavo.broker.types import Owner, TopicName
from octavo.protocol.codes import OctavoError
from octavo.security.principal import Identity
from tests.sim.broker_links import SimRules
from tests.sim.brokers import CALL_TIMEOUT_S, SimBroker
from tests.sim.process import Process

POLL_MS = 250
_MOVING_WAIT_MS = 300
_CALLER = Identity("user:reader", source="token")


class Request(NamedTuple):
    method: str
    topic: TopicName
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    body: bytes = b""


Handler = Callable[[Any], Awaitable[web.StreamResponse]]
_HANDLERS: Mapping[str, Handler] = {
    "PUT": durable_making.put_stream,
    "POST": durable_streams.append,
    "GET": durable_reads.read,
    "HEAD": durable_reads.read,
    "DELETE": durable_streams.delete_stream,
}
_SILENT = SimpleNamespace(inc=lambda _: None)


class Face:
    """The HTTP of all brokers of a seed. `read_bytes`: the size of an answer."""

    def __init__(self, brokers: Mapping[str, SimBroker], read_bytes: int) -> None:
        self._brokers = brokers
        self._read_bytes = read_bytes

    @contextmanager
    def installed(self, chance: Random) -> Iterator[None]:
        """Within the block, the cursors of long-polls are drawn from `chance`."""
        put, kept = setattr, durable_reads._RANDOM
        put(durable_reads, "_RANDOM", chance)
        try:
            yield
        finally:
            put(durable_reads, "_RANDOM", kept)

    async def answer(
        self, at: SimBroker, asked: Request, incarnation: str | None = None
    ) -> web.Response:
        """Return broker `at`'s answer to a client or, with an `incarnation`, to another broker."""
        handler = _HANDLERS[asked.method]
        if at.broker is None or at.process is None:
            return problem_of(PartitionMoving(f"broker {at.name} is not ready")).response()
        call = self._call(at, at.process, asked, incarnation)
        try:
            response = await handler(call)
        except (OctavoError, TimeoutError) as error:
            response = problem_of(error).response()
        assert isinstance(response, web.Response)
        if call.served_incarnation:
            response.headers.setdefault(INCARNATION_HEADER, call.served_incarnation)
        return response

    def _call(
        self,
        at: SimBroker,
        process: Process,
        asked: Request,
        incarnation: str | None,
    ) -> Any:
        async def read_body() -> bytes:
            return asked.body

        async def read_json(kind: Any) -> Any:
            return msgspec.json.decode(asked.body, type=kind)

        async def there_is_room(_: TopicName) -> None: ...

        headers = CIMultiDict(asked.headers)
        return SimpleNamespace(
            topic=asked.topic,
            namespace=asked.topic.namespace,
            partition=None,
            headers=headers,
            query=asked.query,
            request=SimpleNamespace(
                method=asked.method, headers=headers, secure=False, raw_path="", asked=asked
            ),
            read_body=read_body,
            read_json=read_json,
            reply=lambda found: web.Response(body=msgspec.json.encode(found)),
            check=lambda *_: None,
            forwarded=incarnation is not None,
            incarnation=headers.get(INCARNATION_HEADER) if incarnation is None else incarnation,
            names_incarnation=incarnation is None and INCARNATION_HEADER in headers,
            served_incarnation="",
            owner_url="",
            identity=_CALLER,
            body_is_spent=False,
            messages=0,
            services=SimpleNamespace(
                broker=at.broker,
                url=f"sim://{at.name}",
                clock=process.clock_ms,
                rules=SimpleNamespace(
                    message_bytes_max=lambda _: None,
                    producer_ids=SimpleNamespace(bound_name=lambda _, name: name),
                ),
                operations=self._operations(at, process),
                config=SimpleNamespace(
                    moving_wait_ms=_MOVING_WAIT_MS,
                    stream_poll_ms=POLL_MS,
                    read_bytes=self._read_bytes,
                    read_messages_max=1_000,
                ),
                gate=SimpleNamespace(secured=False),
                metrics=SimpleNamespace(
                    messages_published=_SILENT, bytes_published=_SILENT, messages_read=_SILENT
                ),
                quotas=SimpleNamespace(
                    owned=lambda *_: None,
                    may_publish=lambda *_: None,
                    may_read=lambda *_: None,
                    stored=lambda *_: None,
                    given=lambda *_: None,
                    check_topics=there_is_room,
                ),
                peers=SimpleNamespace(
                    forward=partial(self._forward, process), ask=partial(self._ask, process)
                ),
            ),
        )

    # Between brokers

    def _operations(self, at: SimBroker, process: Process) -> Operations | None:
        """Run operations, such as those for fork points, as in production."""
        if at.broker is None or at.remote is None:
            return None
        rules: Any = SimRules(at.cluster)
        wait_s = _MOVING_WAIT_MS / 1000
        run_id, groups = f"{process.number:x}f", Groups(HttpConfig())
        return Operations(at.broker, at.remote, rules, refusal_of, wait_s, run_id, groups)

    async def _forward(self, process: Process, call: Any, owner: Owner) -> web.Response:
        asked: Request = call.request.asked
        there = partial(self.answer, self._brokers[owner.broker_id], asked, owner.incarnation)
        response = await self._reach(process, owner, there, reads=asked.method in ("GET", "HEAD"))
        if response.status == 503:
            problem = _problem_from(owner, 503, _body(response))
            if isinstance(problem, NotOwner | TopicChanged):
                raise problem
        return response

    async def _ask(
        self,
        process: Process,
        _: str,
        owner: Owner,
        method: str,
        path: str,
        body: bytes | None = None,
        *_args: Any,
        **_kwargs: Any,
    ) -> Reply:
        """Send a `HEAD` or `GET` of a stream."""
        path, _, offset = path.partition("?offset=")
        found = durable.source_of(path)
        assert method in ("HEAD", "GET"), method
        assert found is not None, path
        asked = Request(method, TopicName(*found), query={"offset": offset}, body=body or b"")
        there = partial(self.answer, self._brokers[owner.broker_id], asked, owner.incarnation)
        response = await self._reach(process, owner, there, reads=False)
        if response.status >= 400:
            raise _problem_from(owner, response.status, _body(response))
        return Reply(response.status, response.headers, _body(response))

    async def _reach(
        self,
        process: Process,
        owner: Owner,
        there: Callable[[], Awaitable[web.Response]],
        *,
        reads: bool,
    ) -> web.Response:
        at = self._brokers[owner.broker_id]
        at.cluster.trace.probe("stream.forwarded")
        try:
            answer: web.Response = await at.cluster.network.call(
                process, owner.broker_id, there, CALL_TIMEOUT_S
            )
        except (OSError, TimeoutError) as error:
            if reads or isinstance(error, ConnectionRefusedError):
                raise OwnerUnreachable(f"{owner.broker_id} is not there") from error
            raise Problem(504, "outcome-unknown", repr(error), retryable=True) from error
        return answer


def _body(response: web.Response) -> bytes:
    body = response.body
    assert body is None or isinstance(body, bytes)
    return body or b""
