"""Histories in one line, for tests of the checkers.

    "p send a -> 0; r poll -> 0:a"          one after the other, all answered
    "x=p send a; r poll -> 0:a; x?"         x runs during the poll, with an unknown outcome

An event is `process[/group] call [value] [@log] [#key] [from=n]`, then `-> result`, `?` (unknown)
or `!` (surely failed). A label before it (`x=…`) makes it only the invocation; the label alone,
with one of the three, completes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tests.support.kit.history import LISTS_OF_PAIRS, Call, History, Operation


def history(script: str, log: str = "t") -> History:
    ticks = itertools.count()
    made = History(clock=lambda: float(next(ticks)))
    labelled: dict[str, Operation] = {}
    for event in filter(None, (part.strip() for part in script.split(";"))):
        asked, mark, answer = split(event)
        if asked in labelled:
            complete(made, labelled.pop(asked), mark, answer)
            continue
        label, _, rest = asked.rpartition("=") if is_labelled(asked) else ("", "", asked)
        one = invoke(made, rest, log)
        if label:
            labelled[label] = one
            assert not mark, f"a label begins, it does not end: {event}"
        else:
            complete(made, one, mark or "->", answer)
    return made


def is_labelled(asked: str) -> bool:
    head = asked.split()[0]
    return "=" in head


def split(event: str) -> tuple[str, str, str]:
    if "->" in event:
        asked, _, answer = event.partition("->")
        return asked.strip(), "->", answer.strip()
    if event[-1] in "?!":
        return event[:-1].strip(), event[-1], ""
    return event, "", ""


def invoke(made: History, asked: str, log: str) -> Operation:
    who, call_name, *words = asked.split()
    process, _, group = who.partition("/")
    call = Call(call_name)
    value: Any = None
    key: str | None = None
    for word in words:
        if word[0] == "@":
            log = word[1:]
        elif word[0] == "#":
            key = word[1:]
        elif word.startswith("from="):
            value = int(word[5:])
        else:
            value = asked_value(call, word)
    return made.invoke(process, call, log, value, group=group, key=key)


def asked_value(call: Call, word: str) -> Any:
    if call is Call.ACK:
        return list(numbers(word))
    return int(word) if call in (Call.ACK_UP_TO, Call.RESET) else word


def complete(made: History, one: Operation, mark: str, answer: str) -> None:
    if mark == "?":
        made.info(one)
    elif mark == "!":
        made.fail(one)
    else:
        made.ok(one, result(one.call, answer))


def result(call: Call, answer: str) -> Any:
    if call in LISTS_OF_PAIRS:
        pairs = (pair.split(":") for pair in answer.split(",") if pair)
        return [(int(at), None if what == "-" else what) for at, what in pairs]
    if not answer:
        return None
    if call is Call.ACK:
        return list(numbers(answer))
    if call is Call.CLOSE and "/" in answer:
        return tuple(numbers(answer.replace("/", ",")))
    return int(answer)


def numbers(word: str) -> Iterator[int]:
    return map(int, word.split(","))
