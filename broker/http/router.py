"""Define calls (`Route`) and find the route of a request (`Router`). The calls: `routes.py`.

A path is split at its slashes, and each step is decoded separately. So an encoded slash stays
inside its step, and is refused as part of a name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

import msgspec
from aiohttp import web

from octavo.broker.http.charges import Charge
from octavo.broker.http.needs import Needs
from octavo.broker.http.problems import Problem

Handler = Callable[[Any], Awaitable[web.StreamResponse]]
"""Takes a `Call` (call.py), which imports this module."""
Json = Mapping[str, Any]
Struct = type[msgspec.Struct]
PATH_BYTES_MAX = 4096
_OF_NAMESPACES = ("topics", "durable-streams", "explain")
NO_SUCH_CALL = "no-such-call"


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    place: Literal["path", "query", "header"]
    description: str
    schema: Json
    example: Any = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    media_type: str
    schema: Json | Struct
    example: Any = None


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    description: str
    contents: tuple[Content, ...] = ()
    headers: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`waits`: may take long, and ends when its client goes away."""

    method: str
    path: str
    handler: Handler
    name: str
    tag: str
    summary: str
    needs: Needs
    """The needed rights, without a default, so that a new call cannot forget them."""
    charge: Charge
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: tuple[Content, ...] = ()
    body_required: bool = True
    answers: tuple[Answer, ...] = ()
    problems: tuple[int, ...] = ()
    waits: bool = False
    any_query: bool = False
    """Durable Streams clients may send unknown query parameters."""
    query_names: frozenset[str] = field(init=False)

    @property
    def inner(self) -> bool:
        return self.needs.is_inner

    def __post_init__(self) -> None:
        names = frozenset(p.name for p in self.parameters if p.place == "query")
        object.__setattr__(self, "query_names", names)
        assert set(path_names(self.path)) == {
            p.name for p in self.parameters if p.place == "path"
        }, f"{self.path}: its path parameters are not described"


def path_names(path: str) -> list[str]:
    return [step[1:-1] for step in path.split("/") if step.startswith("{")]


class _Step:
    __slots__ = ("routes", "steps", "variable")

    def __init__(self) -> None:
        self.steps: dict[str, _Step] = {}
        self.variable: _Step | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


class Router:
    """Finds the route of a path; a fixed step wins over a variable step."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Step()
        for route in routes:
            step = self._root
            for part in route.path.split("/")[1:]:
                if part.startswith("{"):
                    step.variable = step.variable or _Step()
                    step = step.variable
                else:
                    step = step.steps.setdefault(part, _Step())
            assert route.method not in step.routes, f"{route.method} {route.path} stands twice"
            step.routes[route.method] = (route, tuple(path_names(route.path)))

    def _hint(self, method: str, path: str) -> str:
        head, version, kind, *rest = [*path.split("/"), "", "", ""][:3] + path.split("/")[3:]
        if head or version != "v1" or kind not in _OF_NAMESPACES or not rest or rest[0] == "public":
            return ""
        whole = "/".join(("", version, kind, "public", *rest))
        try:
            self._find(method, whole, tells=False)
        except Problem:
            return ""
        return f"; was the namespace forgotten? {method} {whole[:200]} is possible"

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        return self._find(method, path, tells=True)

    def _find(self, method: str, path: str, *, tells: bool) -> tuple[Route, dict[str, str]]:
        if len(path) > PATH_BYTES_MAX:
            raise Problem(400, "path-too-long", f"a path has at most {PATH_BYTES_MAX} bytes")
        step: _Step | None = self._root
        values: list[str] = []
        for part in path.split("/")[1:]:
            assert step is not None
            fixed = step.steps.get(part)
            if fixed is None:
                values.append(part)
                step = step.variable
                if step is None:
                    break
            else:
                step = fixed
        if step is None or not step.routes:
            raise Problem(
                404,
                NO_SUCH_CALL,
                f"there is no call at {path[:200]!r}; GET /openapi.json has all"
                + (self._hint(method, path) if tells else ""),
            )
        found = step.routes.get(method)
        if found is None and method == "HEAD":
            found = step.routes.get("GET")
        if found is None:
            allowed = ", ".join(sorted(step.routes))
            raise Problem(
                405,
                "method-not-allowed",
                f"{method[:20]} is not possible here; {allowed} is"
                + (self._hint(method, path) if tells else ""),
                headers={"Allow": allowed},
            )
        route, names = found
        return route, {name: _decode(text) for name, text in zip(names, values, strict=True)}


def _decode(step: str) -> str:
    if "%" not in step:
        return step
    try:
        return unquote(step, errors="strict")
    except UnicodeDecodeError:
        raise Problem(
            400, "invalid-path", f"{step[:60]!r} in the path is not UTF-8 when decoded"
        ) from None
