"""The house rules that no linter knows, over every tracked module."""

from __future__ import annotations

import ast
import asyncio
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from octavo.broker.http.connections import Connection, ConnectionServer
from tests.support import tiers
from tests.support.sources import nodes_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "metadata", "ledger", "bookie", "broker", "octavo", "examples")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MEASURING = sorted((ROOT / "bench").rglob("*.py"))
FUNCTION_LINES_MAX = 75

# Decision 12 (docs/decisions): these packages run on a simulated loop, disk and clock.
SIMULATED = ("protocol", "ledger", "bookie", "broker")
SEAMS = {"bookie/disk/files.py"}
FORBIDDEN_CALLS = {
    *("open", "time.time", "time.monotonic", "time.sleep", "threading.Thread"),
    *("os.open", "os.write", "os.fsync", "os.rename", "os.remove", "os.unlink"),
    *("random.random", "random.choice", "random.randint", "random.shuffle", "random.sample"),
}
_LAST = {call.rpartition(".")[2] for call in FORBIDDEN_CALLS}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def untidy(tree: ast.Module, text: str) -> Iterator[str]:
    if not ast.get_docstring(tree):
        yield "a module says in its first lines what it is"
    if re.search(r"\b(TODO|FIXME|XXX)\b", text):
        yield "do it or file it"
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} does not fit a screen ({lines} lines)"
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"line {node.lineno}: a bare except hides everything"


def bypasses(path: Path, tree: ast.Module) -> Iterator[str]:
    if path.relative_to(ROOT).parts[0] not in SIMULATED or relative(path) in SEAMS:
        return
    for node in nodes_of(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        last = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if last in _LAST and ast.unparse(node.func) in FORBIDDEN_CALLS:
            yield f"line {node.lineno}: {ast.unparse(node.func)}()"


def imported_by(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_modules_keep_the_house_rules() -> None:
    """One test for all modules, so that each is parsed once: they are tidy, call nothing that
    bypasses the simulation seam, and import no tests."""
    wrong: list[str] = []
    for path in MODULES:
        text = path.read_text()
        tree = ast.parse(text)
        wrong += [f"{relative(path)}: {why}" for why in untidy(tree, text)]
        wrong += [f"{relative(path)}: {why}" for why in bypasses(path, tree)]
        beyond = imported_by(tree) & {"tests", "bench"}
        wrong += [f"{relative(path)}: imports {name}" for name in sorted(beyond)]
    assert len(MODULES) > 500
    assert not wrong, "\n".join(wrong)


def test_benchmarks_need_no_tests() -> None:
    wrong = [
        relative(path) for path in MEASURING if "tests" in imported_by(ast.parse(path.read_text()))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "a module says"),
        ('"""A."""\n# TODO', "do it or file it"),
        ('"""A."""\ndef f():\n' + "    x\n" * FUNCTION_LINES_MAX, "f does not fit a screen"),
        ('"""A."""\ntry:\n    x\nexcept:\n    y', "line 4: a bare except"),
    ],
)
def test_an_untidy_module_is_found(text: str, why: str) -> None:
    [found] = untidy(ast.parse(text), text)
    assert found.startswith(why)


def test_a_call_that_bypasses_the_seam_is_found() -> None:
    tree = ast.parse("import time\nx = time.time()")
    assert list(bypasses(ROOT / "broker" / "x.py", tree)) == ["line 2: time.time()"]
    assert not list(bypasses(ROOT / "octavo" / "x.py", tree))
    assert imported_by(tree) == {"time"}


def test_assertions_are_on() -> None:
    assert __debug__, "product assertions are part of the safety net: never run with -O"


def has_test(name: str) -> bool:
    path, _, function = tiers.function_of(name).partition("::")
    if not function or not (ROOT / path).exists():
        return not function and (ROOT / path).exists()
    outer = re.escape(function.partition("::")[0])
    found = rf"^(?:(?:async )?def|class) {outer}\b|^{outer} = "
    return re.search(found, (ROOT / path).read_text(), re.MULTILINE) is not None


def test_the_second_tier_names_tests_that_are_there() -> None:
    gone = [name for name in tiers.read(tiers.LIST.read_text()) if not has_test(name)]
    assert gone == [], "rename these lines of tests/medium.txt as their tests, or take them out"
    assert [name for name in tiers.FIRST_TIER if not has_test(name)] == []


def test_a_test_that_is_gone_is_found() -> None:
    here = "tests/unit/test_tidy.py::"
    assert has_test(f"{here}{test_a_test_that_is_gone_is_found.__name__}[a case]")
    assert has_test("tests/unit/")
    assert has_test("tests/unit/broker/test_bulk_load.py::TestBulkLoads::runTest")
    gone = (f"{here}test_a_test", "tests/unit/test_none.py::test_it", "tests/none/")
    assert [name for name in gone if has_test(name)] == []


# Each package's `__init__` describes it truly, and runs no code.
ROOMS = sorted(
    path.parent
    for layer in ("bookie", "broker", "ledger")
    for path in (ROOT / layer).rglob("*.py")
    if path.name == "__init__.py"
)
LINES_MIN = 7
BEYOND = {"lint-imports", "metadata", "protocol", "ledger"}
"""Names in these docstrings that are not defined below the package."""


def said(room: Path) -> str:
    return ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    found = set()
    for node in nodes_of(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


def test_every_folder_with_modules_is_a_room() -> None:
    folders = {
        path.parent
        for layer in ("bookie", "broker", "ledger")
        for path in (ROOT / layer).rglob("*.py")
    }
    assert folders == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS, ids=relative)
def test_a_door_says_what_one_needs_to_know_and_does_nothing(room: Path) -> None:
    tree = ast.parse((room / "__init__.py").read_text())
    assert len(tree.body) == 1, "no code: it would run at every import, and hide who imports what"
    text = said(room)
    assert len(text.splitlines()) >= LINES_MIN
    for word in ("Promises", "Relies on", "crash", "Others use"):
        assert word.lower() in " ".join(text.split()).lower(), f"says nothing of: {word}"


def test_what_doors_name_is_there() -> None:
    """One test for all rooms, so that each module is parsed once."""
    missing = [f"{relative(room)}: {name}" for room in ROOMS for name in _missing(room)]
    assert not missing


def _missing(room: Path) -> Iterator[str]:
    layer = ROOT / room.relative_to(ROOT).parts[0]
    inside, offered = " ".join(said(room).split()).split("Others use")
    for text, place in ((inside, layer), (offered, room)):
        files = sorted(place.rglob("*.py"))
        there = {path.stem for path in files} | {path.parent.name for path in files}
        known = there.union(BEYOND, *map(names_in, files))
        for name in re.findall(r"`([^`]+)`", text):
            is_file = (ROOT / name).is_file() or (layer / name).is_file()
            if not (is_file if "/" in name else name in known):
                yield name


def test_pure_modules_say_so_and_are_held_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [held] = [one for one in contracts["contracts"] if one["name"].startswith("Pure modules")]
    say_so = {
        "octavo." + relative(path).removeprefix("octavo/").removesuffix(".py").replace("/", ".")
        for layer in ("bookie", "broker", "ledger", "metadata", "protocol", "octavo/security")
        for path in (ROOT / layer).rglob("*.py")
        if path.name != "__init__.py" and _says_pure(path)
    }
    assert set(held["source_modules"]) == say_so


def _says_pure(path: Path) -> bool:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return bool(re.search(r"(?m)(^|[.] )Pure([.:;]| arithmetic)|a pure state machine", text))


# Code that iterates a set sorts it, or keeps a dict: the order of a set differs from run to run.
SET_MODULES = [
    path
    for part in ("bookie", "ledger", "broker", "metadata")
    for path in (ROOT / part).rglob("*.py")
]
_HARMLESS = ("set[int]", "frozenset[int]", "set[asyncio.Task")
_ORDERLESS = {"sorted", "len", "set", "frozenset", "min", "max", "sum", "any", "all", "bool"}
_ORDERED = {"tuple", "list", "iter", "enumerate", "map", "zip"}


def iterated_sets(source: str) -> Iterator[tuple[int, str]]:
    nodes = nodes_of(ast.parse(source))
    sets = {ast.unparse(name): kind for name, kind in _sets(nodes)}
    harmless = {name for name, kind in sets.items() if kind.startswith(_HARMLESS)}
    for node, iterated in _iterations(nodes):
        name = ast.unparse(iterated)
        made_here = isinstance(iterated, ast.Set | ast.SetComp) or _is_call(iterated, "set")
        if made_here or (name in sets and name not in harmless):
            yield node.lineno, name


def _sets(nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, str]]:
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and "set[" in ast.unparse(node.annotation)[:10]:
            yield node.target, ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            made = node.value
            if isinstance(made, ast.Set | ast.SetComp) or _is_call(made, "set"):
                yield node.targets[0], ""
        elif isinstance(node, ast.arg) and node.annotation is not None:
            kind = ast.unparse(node.annotation)
            yield from [(ast.Name(node.arg), kind)] * kind.startswith(("set[", "frozenset["))


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and _called(node) == name


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _iterations(nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (where, what) is iterated, in an order that may matter."""
    orderless = {
        id(argument)
        for node in nodes
        if isinstance(node, ast.Call) and _called(node) in _ORDERLESS
        for argument in node.args
    }
    for node in nodes:
        if isinstance(node, ast.For | ast.AsyncFor):
            yield node.iter, node.iter
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
            if id(node) not in orderless:
                yield from ((one.iter, one.iter) for one in node.generators)
        elif isinstance(node, ast.Starred):
            yield node, node.value
        elif isinstance(node, ast.Call) and _called(node) in _ORDERED and id(node) not in orderless:
            yield from ((one, one) for one in node.args)


def test_no_set_is_iterated_unsorted() -> None:
    found = {
        f"{path.parent.name}/{path.name}": sets
        for path in SET_MODULES
        if (sets := list(iterated_sets(path.read_text())))
    }
    assert not found, f"sort it, or use a dict as an ordered set: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "self._a: set[str] = set()\nfor x in self._a: pass",
        "self._a: set[Listener] = set()\nfor x in tuple(self._a): pass",
        "a = {b.name for b in c}\nd = [x for x in a]",
        "a = set(b)\nf(*a)",
        "def f(names: set[str]):\n    return {n: 1 for n in names}",
        "for x in {'a', 'b'}: pass",
        "for x in set(a): pass",
    ],
)
def test_an_iterated_set_is_found(source: str) -> None:
    assert list(iterated_sets(source))


@pytest.mark.parametrize(
    "source",
    [
        "self._a: set[str] = set()\nfor x in sorted(self._a): pass",
        "a = set(b)\nc = len(a) + max(a)\nd = sorted(x for x in a)",
        "self._a: dict[str, None] = {}\nfor x in self._a: pass",
        "self._a: set[int] = set()\nfor x in self._a: pass",
        "a = {1: 2}\nfor x in a: pass",
        "def f(names: set[str]):\n    return [n for n in b if n in names]",
    ],
)
def test_other_iterations_are_let_alone(source: str) -> None:
    assert not list(iterated_sets(source))


# A loop that awaits or calls out goes through a copy of a container that others may change.
LOOP_MODULES = [
    path
    for part in ("bookie", "broker", "ledger", "metadata", "octavo")
    for path in sorted((ROOT / part).rglob("*.py"))
]
_AWAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield)
_VIEWS = ("values", "items", "keys")
_FIXED = (
    "self.config.directories",
    "self._all",  # the journals of a bookie
    "self._record.ledgers.segments",  # a tuple
    "self._newest",  # of a compaction: its first pass is over
    "self._logs.log_ids",  # a new list for each caller
)
"""Containers that never change."""
_HARMLESS_CALLS = ("append", "extend", "add", "clear", "get", *_VIEWS)
"""Methods of containers."""


def risky_loops(source: str) -> Iterator[tuple[int, str]]:
    for node in nodes_of(ast.parse(source)):
        if not isinstance(node, ast.For | ast.AsyncFor):
            continue
        live, is_dict = _live(node.iter)
        if live is None or ast.unparse(live) in _FIXED:
            continue
        body = [part for statement in node.body for part in _stays(statement)]
        names = {name.id for name in nodes_of(node.target) if isinstance(name, ast.Name)}
        called = [part.func for part in body if isinstance(part, ast.Call)]
        calls_out = any(isinstance(one, ast.Name) and one.id in names for one in called)
        of_it = any(
            isinstance(one, ast.Attribute)
            and isinstance(one.value, ast.Name)
            and one.value.id in names
            and one.attr not in _HARMLESS_CALLS
            for one in called
        )
        if any(isinstance(part, _AWAITS) for part in body) or calls_out or (is_dict and of_it):
            yield node.lineno, ast.unparse(node.iter)


def _stays(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all within `node` that does not leave the loop."""
    if not isinstance(node, ast.Return | ast.Raise):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _stays(child)


def _live(iterated: ast.expr) -> tuple[ast.expr | None, bool]:
    """Return the object's own container of the loop, and whether it is a dict; or None."""
    if isinstance(iterated, ast.Call):
        function = iterated.func
        if isinstance(function, ast.Attribute) and function.attr in _VIEWS and not iterated.args:
            return _live(function.value)[0], True
        if isinstance(function, ast.Name) and function.id in ("enumerate", "zip", "reversed"):
            return next(((one, of) for one, of in map(_live, iterated.args) if one), (None, False))
        return None, False
    base: ast.expr = iterated
    while isinstance(base, ast.Attribute):
        base = base.value
    own = isinstance(iterated, ast.Attribute) and isinstance(base, ast.Name) and base.id == "self"
    return (iterated if own else None), False


def test_what_may_change_meanwhile_is_copied_first() -> None:
    found = {
        str(path.relative_to(ROOT)): loops
        for path in LOOP_MODULES
        if (loops := list(risky_loops(path.read_text())))
    }
    assert not found, f"go through tuple(…) of it: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "for x in self._a.values():\n    x.drop()",
        "for k, x in self._a.items():\n    await f(k)",
        "for listener in self._listeners:\n    listener()",
        "for x in self._a:\n    async with x: pass",
        "for n, x in enumerate(self._a):\n    await x.close()",
    ],
)
def test_a_risky_loop_is_found(source: str) -> None:
    assert list(risky_loops(f"async def f(self):\n    {source.replace(chr(10), chr(10) + '    ')}"))


@pytest.mark.parametrize(
    "source",
    [
        "for x in tuple(self._a.values()):\n    x.drop()",
        "for x in self._a:\n    x.cancel()",
        "for x in self._a.values():\n    total += x",
        "for x in found:\n    await x",
        "for x in self._a:\n    if x.is_it:\n        return await x",
    ],
)
def test_others_are_let_alone(source: str) -> None:
    code = f"async def f(self):\n    {source.replace(chr(10), chr(10) + '    ')}"
    assert not list(risky_loops(code))


# Our uses of aiohttp's private parts, each named, and each tried on the real thing.
AIOHTTP_USERS = (
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
    for path in (path for package in AIOHTTP_USERS for path in (ROOT / package).rglob("*.py")):
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
