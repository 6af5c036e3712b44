"""What the rows of the table of calls (routes.py) are put together from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.broker.http.call import JSON
from octavo.broker.http.router import Answer, Content, Handler, Parameter, Route
from octavo.broker.http.schemas import NAME, OFFSET, ref

TOPIC = "/v1/topics/{namespace}/{topic}"
_EXAMPLES: dict[str, Any] = {
    "namespace": "public",
    "topic": "flights",
    "partition": 0,
    "subscription": "reports",
    "transaction": "nightly-copy",
    "batch": 0,
}
_NAMED: dict[str, dict[str, Any]] = {
    "namespace": NAME,
    "topic": NAME,
    "subscription": NAME,
    "transaction": NAME,
    "batch": OFFSET,
    "partition": {"type": "integer", "minimum": 0},
    "ledger": OFFSET,
    "entry": OFFSET,
}


def in_path(*names: str) -> tuple[Parameter, ...]:
    """Variables of the path."""
    return tuple(
        Parameter(name, "path", f"the {name}", _NAMED[name], _EXAMPLES.get(name)) for name in names
    )


def query(name: str, description: str, schema: dict[str, Any], example: Any = None) -> Parameter:
    """A parameter behind the question mark."""
    return Parameter(name, "query", description, schema, example)


def header(name: str, description: str, example: Any = None) -> Parameter:
    """A header of the request."""
    return Parameter(name, "header", description, {"type": "string"}, example)


def json(schema: str, example: Any = None) -> tuple[Content, ...]:
    """A body of JSON."""
    return (Content(JSON, ref(schema), example),)


def ok(description: str, schema: str = "Any", status: int = 200) -> Answer:
    """An answer that says yes."""
    return Answer(status, description, json(schema))


def get(path: str, handler: Handler, name: str, summary: str, answer: str, tag: str) -> Route:
    """A plain GET of something that has a path and nothing else."""
    names = tuple(step[1:-1] for step in path.split("/") if step.startswith("{"))
    return Route(
        method="GET",
        path=path,
        handler=handler,
        name=name,
        tag=tag,
        summary=summary,
        parameters=in_path(*names),
        answers=(ok(summary, answer),),
        problems=(404,) if names else (),
    )


def both(route: Route, **differs: Any) -> tuple[Route, Route]:
    """The call on a topic, and the same on one of its partitions."""
    changes = {
        "path": route.path.replace(TOPIC, TOPIC + "/partitions/{partition}"),
        "name": route.name + "_of_partition",
        "summary": route.summary + ", one partition",
        "parameters": (*route.parameters, *in_path("partition")),
    }
    return route, replace(route, **{**changes, **differs})
