"""The HTTP side of a broker for clients that hang up: production calls, quotas and handlers.

`Front` is one broker's process, with tiny bounds. `Sent` is a client's side of a connection: a body
that breaks off, or a reader that takes nothing.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http import HttpVersion11
from multidict import CIMultiDict

from octavo.broker.http.call import Call
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.gate import Grant
from octavo.broker.http.held_bytes import HeldBytes
from octavo.broker.http.problems import problem_of, refusal_of
from octavo.broker.http.quotas import HttpQuotas
from octavo.broker.http.router import Router
from octavo.broker.http.routes import ROUTES
from octavo.broker.http.services import InHand
from octavo.broker.http.stream import StreamPlaces
from octavo.broker.operations.asking import Operations
from octavo.protocol.codes import OctavoError
from octavo.security.limits import Quota, Quotas
from octavo.security.principal import Identity
from tests.sim.broker_links import SimRules
from tests.sim.brokers import SimBroker
from tests.sim.process import Process

CALLER = Identity("user:reader", source="token")
STREAMS_MAX, STREAMS_OF_ONE = 3, 2
BODIES_BYTES_MAX = 2_000
POLL_MS, EVENTS_MS, STALL_MS = 200, 600, 300
_ROUTER = Router(ROUTES)
_BUFFER_BYTES = 1 << 16
_CLIENT_GONE = 499


class Sent:
    def __init__(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        *,
        size: int | None = 0,
        takes: int = 1 << 30,
    ) -> None:
        """`size`: the announced length of the body; None: it is not announced. `takes`: how many
        pieces of the answer its reader takes."""
        self.method = method
        self.raw_path = path
        self.headers = CIMultiDict(headers)
        self.content_length = size
        way: Any = _Way()
        self.content = StreamReader(way, _BUFFER_BYTES, loop=_loop())
        if size == 0:
            self.content.feed_eof()
        self.remote = "10.0.0.1"
        self.secure = False
        self.transport = None
        self.protocol = SimpleNamespace(counted_as="", when_lost=self._when_lost)
        self.version, self.keep_alive = HttpVersion11, True
        self.writer = self._payload_writer = _Writer(takes)
        self._lost: list[Any] = []

    def _when_lost(self, call: Any) -> None:
        self._lost.append(call)

    async def _prepare_hook(self, _: web.StreamResponse) -> None: ...

    @staticmethod
    def date() -> str:
        """Return the text of the head's `Date`, which aiohttp would take from the real clock."""
        return "Fri, 27 Nov 2026 12:00:00 GMT"

    def lose(self) -> None:
        for call in self._lost:
            call()


class _Way:
    connected = True
    _reading_paused = False

    def pause_reading(self, **_: object) -> None: ...

    def resume_reading(self, **_: object) -> None: ...


class _Writer:
    length: int | None = None

    def __init__(self, takes: int) -> None:
        self.output_size = 0
        self.pieces = 0
        self._takes = takes

    async def write(self, data: bytes) -> None:
        if self.pieces >= self._takes:
            await _loop().create_future()
        self.pieces += 1
        self.output_size += len(data)

    async def write_eof(self, data: bytes = b"") -> None:
        await self.write(data)

    async def write_headers(self, status_line: str, headers: Any) -> None: ...

    def enable_chunking(self) -> None: ...

    def send_headers(self) -> None: ...


class Front:
    def __init__(self, at: SimBroker, process: Process) -> None:
        assert at.broker is not None
        assert at.door is not None
        assert at.remote is not None
        assert at.store is not None
        self.process = process
        config = HttpConfig(
            streams_max=STREAMS_MAX,
            stream_poll_ms=POLL_MS,
            stream_events_ms=EVENTS_MS,
            stall_timeout_ms=STALL_MS,
            body_timeout_ms=800,
            moving_wait_ms=300,
        )
        nothing: Any = SimpleNamespace(quota_exceeded=lambda _: None)
        self.quotas = HttpQuotas(at.store, at.broker, config, nothing)
        self.quotas._use(
            Quotas({CALLER.name: Quota(streams=STREAMS_OF_ONE, connections=1_000, memory=1_500)})
        )
        self.streams = StreamPlaces(STREAMS_MAX, lambda _: None)
        self.held = HeldBytes(BODIES_BYTES_MAX)
        self.held.quota_of = self.quotas.memory_of
        self.in_hand = InHand()
        rules: Any = SimRules(at.cluster)
        self.operations = Operations(
            at.broker, at.remote, rules, refusal_of, 0.3, f"{process.number:x}l", at.door.groups
        )
        gate: Any = SimpleNamespace(
            secured=False, check=lambda *_: None, holds=lambda _: True, may=lambda *_: True
        )
        self.services: Any = SimpleNamespace(
            broker=at.broker,
            url=f"sim://{at.name}",
            clock=process.clock_ms,
            config=config,
            held=self.held,
            quotas=self.quotas,
            streams=self.streams,
            operations=self.operations,
            gate=gate,
        )

    def parts(self) -> list[object]:
        return [self.quotas, self.streams, self.held, self.in_hand]

    async def answer(self, sent: Sent) -> int:
        """Answer as the server does; return the status. Raises what no handler may raise."""
        path, _, query = sent.raw_path.partition("?")
        call: Call | None = None
        self.in_hand.enter()
        try:
            route, variables = _ROUTER.find(sent.method, path)
            call = Call(sent, route, variables, query, self.services)  # type: ignore[arg-type]
            call.grant = Grant(CALLER, 0)
            self.quotas.admit(call, sent.protocol)
            response = await route.handler(call)
            self.quotas.answered(call, response)
            return response.status
        except ConnectionError:  # the client has gone
            return _CLIENT_GONE
        except (OctavoError, TimeoutError) as error:
            return problem_of(error).status
        finally:
            if call is not None:
                call.release()
            self.in_hand.leave()
            sent.lose()


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
