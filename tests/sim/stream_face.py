"""Brokers' durable streams in the simulator: the production handlers, called between processes.

HTTP's sockets, routes, rights and quotas are left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from octavo.broker.errors import PartitionMoving
from octavo.broker.groups.coordinator import Groups
from octavo.broker.http.api import durable_streams
from octavo.broker.http.call import INCARNATION_HEADER
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.problems import problem_of, refusal_of
from octavo.broker.operations.asking import Operations
from octavo.broker.types import TopicName
from octavo.protocol.codes import OctavoError
from octavo.security.principal import Identity
from tests.sim.broker_links import SimRules
from tests.sim.brokers import SimBroker
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
    "PUT": durable_streams.put_stream,
    "POST": durable_streams.append,
    "GET": durable_streams.read,
    "HEAD": durable_streams.read,
    "DELETE": durable_streams.delete_stream,
}


class Face:
    """The HTTP of all brokers of a seed. `read_bytes`: the size of an answer."""

    def __init__(self, read_bytes: int) -> None:
        self._read_bytes = read_bytes

    @contextmanager
    def installed(self, chance: Random) -> Iterator[None]:
        put, kept = setattr, durable_streams._RANDOM
        put(durable_streams, "_RANDOM", chance)
        try:
            yield
        finally:
            put(durable_streams, "_RANDOM", kept)

    async def answer(self, at: SimBroker, asked: Request) -> web.Response:
        handler = _HANDLERS[asked.method]
        if at.broker is None or at.process is None:
            return problem_of(PartitionMoving(f"broker {at.name} is not ready")).response()
        call = self._call(at, at.process, asked)
        try:
            response = await handler(call)
        except (OctavoError, TimeoutError) as error:
            response = problem_of(error).response()
        assert isinstance(response, web.Response)
        if call.served_incarnation:
            response.headers.setdefault(INCARNATION_HEADER, call.served_incarnation)
        return response

    def _call(self, at: SimBroker, process: Process, asked: Request) -> Any:
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
                method=asked.method, headers=headers, secure=False, raw_path=""
            ),
            read_body=read_body,
            read_json=read_json,
            reply=lambda found: web.Response(body=msgspec.json.encode(found)),
            check=lambda *_: None,
            incarnation=headers.get(INCARNATION_HEADER),
            names_incarnation=INCARNATION_HEADER in headers,
            served_incarnation="",
            owner_url="",
            identity=_CALLER,
            body_is_spent=False,
            messages=0,
            services=SimpleNamespace(
                broker=at.broker,
                url=f"sim://{at.name}",
                clock=process.clock_ms,
                operations=self._operations(at, process),
                config=SimpleNamespace(
                    moving_wait_ms=_MOVING_WAIT_MS,
                    stream_poll_ms=POLL_MS,
                    read_bytes=self._read_bytes,
                    read_messages_max=1_000,
                ),
                gate=SimpleNamespace(secured=False),
                quotas=SimpleNamespace(
                    owned=lambda *_: None,
                    check_topics=there_is_room,
                ),
            ),
        )

    def _operations(self, at: SimBroker, process: Process) -> Operations | None:
        if at.broker is None or at.remote is None:
            return None
        rules: Any = SimRules(at.cluster)
        wait_s = _MOVING_WAIT_MS / 1000
        run_id, groups = f"{process.number:x}f", Groups(HttpConfig())
        return Operations(at.broker, at.remote, rules, refusal_of, wait_s, run_id, groups)
