"""OpenAPI's `components`, made from the structs of bodies and answers.

So documents say what the broker reads and writes; this module adds only what a struct cannot
express. The examples in http/routes.py are run by tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

import msgspec

from octavo.broker.http.api import answers
from octavo.broker.http.router import Struct

NAME = msgspec.json.schema(answers.Name)
OFFSET = msgspec.json.schema(answers.Offset)

_REF = "#/components/schemas/"
ANY = {"$ref": _REF + "Any"}
_MORE: dict[str, dict[str, Any]] = {
    "MessageIn": {
        "anyOf": [{"required": [name]} for name in ("value", "value_text", "value_base64")]
    },
}


def public_name(struct: Struct) -> str:
    return str(vars(struct).get("schema_name", struct.__name__))


def ref(struct: Struct) -> dict[str, Any]:
    return {"$ref": _REF + public_name(struct)}


def components(structs: Iterable[Struct]) -> dict[str, Any]:
    roots = set(structs)
    _, made = msgspec.json.schema_components(roots, ref_template=_REF + "{name}")
    names = {struct.__name__: public_name(struct) for struct in _with_parts(roots)}
    found: dict[str, Any] = {"Any": {"type": "object"}}
    for own, schema in made.items():
        name = names.get(own, own)
        found[name] = {**_renamed(schema, names), **_MORE.get(name, {})}
        del found[name]["title"]  # the internal name
        found[name]["description"] = inspect.cleandoc(schema["description"])
    return dict(sorted(found.items()))


def _with_parts(structs: Iterable[Struct]) -> set[Struct]:
    found: set[Struct] = set()
    types: list[Any] = list(structs)
    while types:
        one = types.pop()
        if not (isinstance(one, type) and issubclass(one, msgspec.Struct)):
            types += get_args(one)
        elif one not in found:
            found.add(one)
            types += get_type_hints(one).values()
    return found


def _renamed(schema: Any, names: dict[str, str]) -> Any:
    if isinstance(schema, list):
        return [_renamed(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _renamed(value, names) for key, value in schema.items()}
    if isinstance(refers := found.get("$ref"), str):
        own = refers.removeprefix(_REF)
        found["$ref"] = _REF + names.get(own, own)
    return found
