"""A listening socket of the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.network import SimNetwork
    from tests.sim.transport import SimTransport


class _Socket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimServer(asyncio.AbstractServer):
    def __init__(
        self,
        network: SimNetwork,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        address: tuple[str, int],
    ) -> None:
        self._network = network
        self.process = process
        self.address = address
        self.sockets: tuple[Any, ...] = (_Socket(address),)
        self._factory = factory
        self._serving = False

    def accept(self, transport: SimTransport) -> None:
        """Take a new connection, as a step of the server's process."""
        if not self._serving:
            transport.abort()
            return
        transport.begin(self._factory(), None)

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = bool(self.sockets)

    async def serve_forever(self) -> None:
        await self.start_serving()
        await self._network.loop.create_future()

    def close(self) -> None:
        self._serving = False
        self.sockets = ()

    async def wait_closed(self) -> None: ...

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    async def __aenter__(self) -> SimServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
