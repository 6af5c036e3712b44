"""Our uses of aiohttp's private parts, each named, and each tried on the real thing.

They are the reason for the bound on aiohttp in pyproject.toml. To raise it: run this with the next
release, and look at each failure.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from aiohttp import web

from octavo.broker.http.connections import Connection, ConnectionServer

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("bookie", "broker", "examples", "ledger", "metadata", "octavo", "protocol", "pyspark_octavo"),
)
PRIVATES = {
    # In web.RequestHandler: whether it waits for a request, has some, is being closed; when an idle
    # connection is closed; and what pauses the transport's reading.
    ("broker/http/connections.py", "_waiter"),
    ("broker/http/connections.py", "_messages"),
    ("broker/http/connections.py", "_close"),
    ("broker/http/connections.py", "_force_close"),
    ("broker/http/connections.py", "_keepalive_timeout"),
    ("broker/http/connections.py", "_process_keepalive"),
    ("broker/http/connections.py", "_pause_transport_reading"),
    ("broker/http/connections.py", "_resume_transport_reading"),
    # In web.RequestHandler: whether its reader, or its buffer, has paused the transport's reading.
    ("broker/http/connections.py", "_reading_paused"),
    ("broker/http/connections.py", "_buffer_paused"),
    ("broker/http/connections.py", "_connections"),  # of web.Server: all open connections, counted
    # of web.RequestHandler: the request that it answers
    ("broker/http/connections.py", "_current_request"),
    ("broker/http/connections.py", "_kwargs"),  # of web.Server: arguments of new connections
    ("broker/http/connections.py", "_loop"),  # of web.Server
    ("octavo/client/wire.py", "_retry_connection"),  # of ClientSession: repeats calls by itself
}
NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def made_in(tree: ast.Module) -> set[str]:
    """Return names of attributes and functions that a module makes."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    } | {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def bases_of(tree: ast.Module) -> Iterator[ast.Module]:
    """Return our modules whose classes are extended in a module."""
    bases = {
        base.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name)
    }
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("octavo."):
            continue
        if bases.isdisjoint(alias.asname or alias.name for alias in node.names):
            continue
        path = (ROOT / str(node.module).replace(".", "/")).with_suffix(".py")
        if path.exists():
            yield ast.parse(path.read_text())


def used_in(tree: ast.Module) -> Iterator[str]:
    """Return private names of others: of any object but `self`, and of `self` where aiohttp made
    it."""
    ours = made_in(tree).union(*map(made_in, bases_of(tree)))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        if node.attr.startswith("__") or node.attr in NAMED_TUPLES:
            continue
        of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if not of_self or node.attr not in ours:
            yield node.attr


def test_each_private_that_is_used_is_named_here() -> None:
    found = set[tuple[str, str]]()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        text = path.read_text()
        if "aiohttp import" in text or "import aiohttp" in text:
            name = path.relative_to(ROOT).as_posix()
            found |= {(name, private) for private in used_in(ast.parse(text))}
    assert found == PRIVATES


async def test_they_are_there_and_mean_what_we_take_them_for() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request.protocol, Connection)
        seen.append((request.protocol.idle, len(server._connections)))
        return web.Response()

    def take(head: bytes, body: bytes, connection: Connection) -> bool:
        waits.append((connection._waiter is not None, len(connection._messages)))
        return False

    seen: list[tuple[bool, int]] = []
    waits: list[tuple[bool, int]] = []
    server = ConnectionServer(
        answer,
        connections_max=9,
        connections_reserved=1,
        on_refused=list,
        short_way=take,
        max_headers=17,
    )
    loop = asyncio.get_running_loop()
    assert server._loop is loop
    assert server._kwargs == {"max_headers": 17}
    listener = await loop.create_server(server, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.get(f"http://{host}:{port}/") as response:
                assert response.status == 200
        (connection,) = server._connections
        assert isinstance(connection, Connection)
        assert connection.idle  # kept alive, and no request is being answered
        assert connection.max_headers == 17
        assert not connection._close
        assert not connection._force_close
        assert connection._keepalive_handle is not None
        left_s = connection._next_keepalive_close_time - loop.time()
        assert 0 < left_s <= connection._keepalive_timeout
        connection.close()
        assert connection._close
    listener.close()
    await server.shutdown(timeout=1)
    assert seen == [(False, 1)] * 2
    assert waits == [(True, 0)] * 2  # a request that comes alone finds nothing before it


async def test_the_client_session_repeats_calls_only_while_that_is_on() -> None:
    """A server hangs up on a reused connection: no code asks again for us."""
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        for _ in range(2):
            if not await reader.readline():
                break
            while (await reader.readline()).strip():
                pass
            asked += 1
            if asked == 2:
                break
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    for repeats in (False, True):
        asked = 0
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with aiohttp.ClientSession() as session:
            assert session._retry_connection is True
            session._retry_connection = repeats
            async with session.delete(f"http://{host}:{port}/"):
                pass
            try:
                async with session.delete(f"http://{host}:{port}/"):
                    pass
            except aiohttp.ServerDisconnectedError:
                assert not repeats
        server.close()
        assert asked == (3 if repeats else 2)


def test_what_has_no_underscore_and_no_page_in_its_manual_either() -> None:
    for owner, names in {
        web.RequestHandler: ("force_close", "handle_error", "writing_paused"),
        web.Server: ("connection_lost", "connection_made", "pre_shutdown", "shutdown"),
        web.BaseRequest: ("protocol", "transport", "writer"),
        aiohttp.StreamReader: ("is_eof", "read_nowait", "readany"),
        aiohttp.abc.AbstractStreamWriter: ("output_size",),
    }.items():
        assert not [name for name in names if not hasattr(owner, name)]
