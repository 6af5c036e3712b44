"""Calls between processes, as a broker's HTTP side makes and takes them, with their faults: the
request is lost, the reply is lost, the request comes twice, either is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.network import SimNetwork

_LATE_S_MAX = 2.0
"""Long enough for the sender to give up, die and come back."""

_Answer = asyncio.Future[Any]


class Calls:
    def __init__(self, network: SimNetwork) -> None:
        self._network = network
        self._loop = network.loop
        self._at: dict[Process, dict[_Answer, Process]] = {}
        """Called process → calls without an answer, with their callers."""

    async def call(
        self,
        src: Process,
        dst: Process | str,
        coro_fn: Callable[[], Awaitable[Any]],
        timeout_s: float,
    ) -> Any:
        network = self._network
        network.attach(src)
        name = dst if isinstance(dst, str) else dst.name
        if isinstance(dst, Process) and name not in network.hosts:
            network.attach(dst)
        answer: _Answer = self._loop.create_future()
        options, trace = network.options, network.trace
        if network.random() < options.call_lost_p:
            trace.fault("call lost")
        else:
            request = (self._request, src, name, coro_fn, answer)
            self._send(src.name, name, *request, late_s=self._late_s())
            if network.random() < options.duplicate_p:
                trace.fault("call duplicated")
                self._send(src.name, name, *request, late_s=self._late_s())
        async with asyncio.timeout(timeout_s):
            return await answer

    def crashed(self, process: Process) -> None:
        """Tell callers that wait for its answer, unless its machine is gone."""
        for answer, src in self._at.pop(process, {}).items():
            if not process.power_lost:
                self._reply(process, src, answer, None, ConnectionResetError(104, process.name))

    def _late_s(self) -> float:
        """Return the extra delay of a request that a proxy or a socket's buffer holds."""
        network = self._network
        if not network.options.late_p or network.random() >= network.options.late_p:
            return 0.0
        network.trace.fault("call late")
        return network.random() * _LATE_S_MAX

    def _send(
        self,
        source: str,
        target: str,
        call: Callable[..., object],
        *args: Any,
        late_s: float = 0.0,
    ) -> None:
        """Deliver, or hold it back while the link is cut: TCP sends again."""
        network, loop = self._network, self._loop
        link = network.link(source, target)
        delay_s = late_s + link.delay_s() + max(0.0, link.clogged_until - loop.now)
        loop.world_later(delay_s, self._arrive, source, target, call, args, 0)

    def _arrive(
        self, source: str, target: str, call: Callable[..., object], args: Any, tries: int
    ) -> None:
        if self._network.link(source, target).cuts:
            again_s = 0.2 * 2**tries
            if tries < 8:
                self._loop.world_later(again_s, self._arrive, source, target, call, args, tries + 1)
            return
        call(*args)

    def _request(
        self,
        src: Process,
        name: str,
        coro_fn: Callable[[], Awaitable[Any]],
        answer: _Answer,
    ) -> None:
        process = self._network.hosts.get(name)
        if process is None or not process.alive:
            if process is None or not process.power_lost:
                self._reply_from(name, src, answer, None, ConnectionRefusedError(111, name))
            return
        self._at.setdefault(process, {})[answer] = src

        async def run() -> None:
            result, error = None, None
            try:
                result = await coro_fn()
            except Exception as raised:
                self._loop.foresee(process, f"call from {src.name}", raised)
                error = raised
            if process.alive:
                self._at.get(process, {}).pop(answer, None)
                self._reply(process, src, answer, result, error)

        process.spawn(run(), f"call from {src.name}")

    def _reply(
        self, process: Process, src: Process, answer: _Answer, result: Any, error: Any
    ) -> None:
        if self._network.random() < self._network.options.reply_lost_p:
            self._network.trace.fault("reply lost")
            return
        self._reply_from(process.name, src, answer, result, error)

    def _reply_from(
        self, name: str, src: Process, answer: _Answer, result: Any, error: Any
    ) -> None:
        self._send(name, src.name, _set, answer, result, error)


def _set(answer: _Answer, result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
