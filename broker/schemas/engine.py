"""A broker's questions about schemas, in a form for another process.

`Answering` uses the libraries, without bounds. Brokers have an `Engine`: worker processes
(octavo/process/schema_workers.py), or `InProcess` for trusted schemas.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol

import msgspec

from octavo.broker.errors import InvalidSchema
from octavo.broker.schemas.compatibility import problems_of
from octavo.broker.schemas.kinds import Schema, parsed

COMPILED_KEPT = 64
PROBLEMS_TOLD = 100


class Read(msgspec.Struct, tag="read", frozen=True):
    kind: str
    given: bytes
    """JSON: the schema, or a string with its text."""


class Compare(msgspec.Struct, tag="compare", frozen=True):
    kind: str
    text: str
    mode: str
    versions: list[tuple[int, str]]
    """Number and text, oldest first; all of the same kind."""


class Check(msgspec.Struct, tag="check", frozen=True):
    kind: str
    text: str
    values: list[bytes]


class Text(msgspec.Struct, tag="text", frozen=True):
    text: str


class Problems(msgspec.Struct, tag="problems", frozen=True):
    """The answer to `Compare`; empty if the schema may follow."""

    problems: list[str]


class Misfit(msgspec.Struct, tag="misfit", frozen=True):
    """The first value that does not fit; empty `why`: all fit."""

    index: int = 0
    why: str = ""


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The schema is invalid; may answer any question."""

    why: str


class TooCostly(msgspec.Struct, tag="too-costly", frozen=True):
    """Beyond a time or memory limit; may answer any question."""

    why: str


Question = Read | Compare | Check
Answer = Text | Problems | Misfit | Refused | TooCostly


class Engine(Protocol):
    async def ask(self, key: Hashable, question: Question) -> Answer:
        """Answer a question; `key`s (callers or subjects) take turns."""

    async def aclose(self) -> None: ...


class Answering:
    def __init__(self) -> None:
        self._compiled: OrderedDict[tuple[str, str], Schema] = OrderedDict()

    def answer(self, question: Question) -> Answer:
        try:
            return self._answer(question)
        except InvalidSchema as error:
            return Refused(str(error))
        except MemoryError:
            return TooCostly("it takes more memory than allowed")
        except RecursionError:
            return Refused("it is nested too deeply")

    def _answer(self, question: Question) -> Answer:
        if isinstance(question, Read):
            schema = parsed(question.kind, msgspec.json.decode(question.given))
            # A schema whose checks always fail should fail here, not at the first message.
            for value in (b"1", b'""', b"[]", b"{}"):
                schema.misfit(value)
            return Text(schema.text)
        if isinstance(question, Compare):
            own = self._schema(question.kind, question.text)
            versions = [(number, self._schema(question.kind, text))
                        for number, text in question.versions]  # fmt: skip
            found = problems_of(
                question.mode, own, versions, lambda reader, writer: reader.unreadable(writer)
            )
            return Problems(found[:PROBLEMS_TOLD])
        schema = self._schema(question.kind, question.text)
        for index, value in enumerate(question.values):
            if (why := schema.misfit(value)) is not None:
                return Misfit(index, why)
        return Misfit()

    def _schema(self, kind: str, text: str) -> Schema:
        found = self._compiled.get((kind, text))
        if found is None:
            found = self._compiled[kind, text] = parsed(kind, text)
            if len(self._compiled) > COMPILED_KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end((kind, text))
        return found


class InProcess:
    """Answers on the event loop: for tests, and brokers with trusted schemas only."""

    def __init__(self) -> None:
        self._answering = Answering()

    async def ask(self, key: Hashable, question: Question) -> Answer:
        del key
        return self._answering.answer(question)

    async def aclose(self) -> None: ...
