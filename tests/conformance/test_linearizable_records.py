"""Records are registers with compare-and-set: one order explains all concurrent answers.
Several stores use the same few records, some with old versions, some cut off; falsified
answers have no such order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from octavo.metadata.store import (
    ANY_VERSION,
    MetadataUnavailable,
    RecordExists,
    RecordNotFound,
    VersionConflict,
)
from tests.support.kit.history import Call, History
from tests.support.kit.linearizability import check_registers, versioned
from tests.support.kit.problems import report

PATHS = ("/r/a", "/r/b")
REFUSED = (RecordExists, RecordNotFound, VersionConflict)


async def use(store: Any, name: str, told: History, rng: random.Random, count: int) -> None:
    """Act as one user: mostly with the version that it saw last."""
    seen: dict[str, int] = {}
    for number in range(count):
        path = rng.choice(PATHS)
        if rng.random() < 0.4:
            one = told.invoke(name, Call.GET, path)
            try:
                told.ok(one, await look(store, path))
            except MetadataUnavailable:
                told.info(one)
            if one.result is not None:
                seen[path] = one.result[1]
            continue
        expected = rng.choice((None, ANY_VERSION, seen.get(path), seen.get(path), 0, 1))
        new = None if rng.random() < 0.2 and expected is not None else f"{name}-{number}".encode()
        one = told.invoke(name, Call.CAS, path, (expected, new))
        try:
            told.ok(one, await change(store, path, expected, new))
        except REFUSED:
            told.ok(one, False)
        except MetadataUnavailable:
            told.info(one)


async def look(store: Any, path: str) -> tuple[bytes, int] | None:
    try:
        record = await store.get(path)
    except RecordNotFound:
        return None
    return (bytes(record.value), record.version)


async def change(store: Any, path: str, expected: int | None, new: bytes | None) -> int | bool:
    if expected is None:
        await store.create(path, new)
        return 0
    if new is None:
        await store.delete(path, expected)
        return True
    return int(await store.put(path, new, expected))


@pytest.mark.parametrize("seed", range(3))
async def test_one_order_explains_all_answers(tree: Any, seed: int) -> None:
    rng = random.Random(seed)
    stores = [await tree.open(impatient=True) for _ in range(3)]
    told = History()
    users = [
        use(store, f"{at}.{user}", told, random.Random(rng.random()), 25)
        for at, store in enumerate(stores)
        for user in range(2)
    ]
    await asyncio.gather(*users)
    for path in PATHS:  # the end, as a last witness
        told.add_done("end", Call.GET, path, None, await look(stores[0], path))
    problems = check_registers(told, versioned)
    assert not problems, report(problems)
    answered = [one for one in told if one.call is Call.GET and one.result is not None]
    assert answered, "the records are there now and then"
    one = rng.choice(answered)
    one.result = (one.result[0], one.result[1] + 50)
    assert len(check_registers(told, versioned)) == 1, "a version that never was"
