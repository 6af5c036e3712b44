"""What a broker asks of schemas, as questions and answers that can be sent to another process.

`answer` does the work with the libraries, so it may take any time and memory. A broker is handed an
`Engine`: a driver with processes of its own (octavo/process/schema_workers.py), or `InProcess` for
tests and the simulator, whose schemas are their own.
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
"""Schemas kept from one question to the next."""
PROBLEMS_TOLD = 100
"""Told of a comparison."""


class Read(msgspec.Struct, tag="read", frozen=True):
    """Is this a schema, and what is its text in one form?"""

    kind: str
    given: bytes
    """As JSON: the schema, or text that is a schema."""


class Compare(msgspec.Struct, tag="compare", frozen=True):
    """May this schema follow these versions?"""

    kind: str
    text: str
    mode: str
    versions: list[tuple[int, str]]
    """Number and text, oldest first; all of the same kind."""


class Check(msgspec.Struct, tag="check", frozen=True):
    """Do these values of messages fit this schema?"""

    kind: str
    text: str
    values: list[bytes]


class Text(msgspec.Struct, tag="text", frozen=True):
    """To `Read`."""

    text: str


class Problems(msgspec.Struct, tag="problems", frozen=True):
    """To `Compare`: why not; empty when it may."""

    problems: list[str]


class Misfit(msgspec.Struct, tag="misfit", frozen=True):
    """To `Check`: the first value that does not fit, and why; `why` is empty when all do."""

    index: int = 0
    why: str = ""


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """To any: the schema is none, and why."""

    why: str


class TooCostly(msgspec.Struct, tag="too-costly", frozen=True):
    """To any: it takes more time or memory than there is for it."""

    why: str


Question = Read | Compare | Check
Answer = Text | Problems | Misfit | Refused | TooCostly


class Engine(Protocol):
    """Answers questions, in bounded time, without holding up the loop that asks."""

    async def ask(self, key: Hashable, question: Question) -> Answer:
        """`key`: who asks, or for which subject; keys take turns.

        Raises `SchemaCheckUnavailable` when there is no answer now.
        """

    async def aclose(self) -> None:
        """Answer nothing more."""


class Answering:
    """Answers one question after the other with the libraries, and keeps the schemas compiled."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[tuple[str, str], Schema] = OrderedDict()

    def answer(self, question: Question) -> Answer:
        """The answer, whatever the libraries raise."""
        try:
            return self._answer(question)
        except InvalidSchema as error:
            return Refused(str(error))
        except MemoryError:
            return TooCostly("it takes more memory than there is for it")
        except RecursionError:
            return Refused("it is nested too deeply")

    def _answer(self, question: Question) -> Answer:
        if isinstance(question, Read):
            schema = parsed(question.kind, msgspec.json.decode(question.given))
            # What cannot even be held against these is found here, not at the first message.
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
    """Answers on the loop: for tests, and brokers whose schemas nobody else makes."""

    def __init__(self) -> None:
        self._answering = Answering()

    async def ask(self, key: Hashable, question: Question) -> Answer:
        """At once, however long it takes."""
        del key
        return self._answering.answer(question)

    async def aclose(self) -> None:
        """There is nothing to end."""
