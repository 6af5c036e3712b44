"""Schema work in separate processes: bounded, fair, and gone with the broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator

import psutil
import pytest

from octavo.broker.errors import SchemaCheckUnavailable
from octavo.broker.schemas.engine import (
    Check,
    Compare,
    Misfit,
    Problems,
    Read,
    Refused,
    Text,
    TooCostly,
)
from octavo.process.schema_workers import Bounds, SchemaWorkers
from tests.support.loop_time import LoopTime
from tests.support.schemas import fanned_out

HELD = Bounds(check_ms=150, read_ms=300, pause_s=0.2)
LOOP_S_MAX = 0.05


# Some milliseconds per value: the schema is just within the allowed cost.
SLOW = Check("json", json.dumps(fanned_out(16)), [b"1"] * 4_000)
PLAIN = Check("json", '{"type":"integer"}', [b"1", b"2"])


@pytest.fixture
async def workers() -> AsyncIterator[SchemaWorkers]:
    async with contextlib.aclosing(SchemaWorkers(HELD)) as found:
        yield found
        assert (found.waiting, found.waiting_bytes) == (0, 0)


async def test_questions_are_answered(workers: SchemaWorkers) -> None:
    assert workers.server_pid == 0, "it is started when it is needed"
    assert await workers.ask("s", PLAIN) == Misfit()
    found = await workers.ask("s", Check("json", '{"type":"integer"}', [b"1", b'"x"']))
    assert isinstance(found, Misfit)
    assert found.index == 1
    assert "is not of type" in found.why
    assert await workers.ask("s", Read("avro", b'{"type": "int"}')) == Text('{"type":"int"}')
    assert isinstance(await workers.ask("s", Read("json", b"5")), Refused)
    same = Compare("json", "{}", "FULL", [(1, "{}")])
    assert await workers.ask("s", same) == Problems([])


async def test_a_broker_with_many_descriptors_has_schemas_checked(
    workers: SchemaWorkers, request: pytest.FixtureRequest
) -> None:
    """`select` refuses descriptors from 1,024 on, so a busy broker checked no schema."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert await workers.ask("s", PLAIN) == Misfit()
    finally:
        for descriptor in held:
            os.close(descriptor)


async def test_what_cannot_be_proved_is_an_answer(workers: SchemaWorkers) -> None:
    """`{"not": {"const": [1]}}`, then `{}`: a 500, because the library raises where it cannot
    decide."""
    denied = '{"not":{"const":[1]}}'
    found = await workers.ask("s", Compare("json", denied, "BACKWARD", [(1, "{}")]))
    assert isinstance(found, Problems)
    assert "cannot be proved" in found.problems[0]


AVRO_NULLS = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "b", "type": "boolean"},
            *({"name": f"n{n}", "type": "null"} for n in range(2_000)),
        ],
    },
}


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Read("json", json.dumps(fanned_out(60)).encode()), "costs too much"),
        (Read("avro", json.dumps(AVRO_NULLS).encode()), "parts for each of its bytes"),
        (Read("json", b'"{\\"minimum\\": NaN}"'), "not JSON"),
        (Read("json", b'"{\\"const\\": \\"\\\\ud800\\"}"'), "not JSON"),
    ],
)
async def test_a_schema_that_costs_too_much_is_refused(
    workers: SchemaWorkers, question: Read, said: str
) -> None:
    """A schema of 4 KB and the message `1` stopped one broker after the other."""
    async with LoopTime() as loop:
        found = await workers.ask("s", question)
    assert isinstance(found, Refused)
    assert said in found.why
    assert loop.longest_s < LOOP_S_MAX


async def test_a_question_that_takes_too_long_is_given_up(workers: SchemaWorkers) -> None:
    async with LoopTime() as loop:
        found = await workers.ask("s", SLOW)
    assert isinstance(found, TooCostly)
    assert "150 ms of processor time" in found.why
    assert loop.longest_s < LOOP_S_MAX
    with pytest.raises(SchemaCheckUnavailable, match="pauses for"):
        await workers.ask("s", PLAIN)
    assert await workers.ask("t", PLAIN) == Misfit(), "others go on"
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(SchemaCheckUnavailable):
                assert await workers.ask("s", PLAIN) == Misfit()
                return
            await asyncio.sleep(0.02)


async def test_a_question_that_takes_too_much_memory_is_given_up() -> None:
    """`describe` alone made a broker take 365 MB, 16 KB of Avro 879 MB."""
    lists = b"[" + b"[]," * 6_000_000 + b"[]]"
    async with contextlib.aclosing(SchemaWorkers(Bounds(check_ms=60_000))) as workers:
        found = await workers.ask("s", Check("json", '{"uniqueItems":true}', [lists]))
        assert isinstance(found, TooCostly)
        assert "memory" in found.why
        assert await workers.ask("t", PLAIN) == Misfit()


async def test_subjects_take_turns(workers: SchemaWorkers) -> None:
    """A subject with many questions waits for itself, and its last question is answered."""
    order: list[str] = []

    async def ask(key: str) -> None:
        assert await workers.ask(key, PLAIN) == Misfit()
        order.append(key)

    await ask("first")
    many = [asyncio.create_task(ask("many")) for _ in range(100)]
    await asyncio.sleep(0)
    await ask("few")
    assert order.index("few") < 10, order
    await asyncio.gather(*many)


async def test_a_line_is_bounded_and_given_back() -> None:
    async with contextlib.aclosing(SchemaWorkers(Bounds(waiting_max=2))) as workers:
        asking = [asyncio.create_task(workers.ask("s", PLAIN)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(SchemaCheckUnavailable, match="too many"):
            await workers.ask("s", PLAIN)
        other = asyncio.create_task(workers.ask("t", PLAIN))
        await asyncio.sleep(0)
        asking[1].cancel()
        other.cancel()
        await asyncio.gather(asking[1], other, return_exceptions=True)
        assert await asking[0] == Misfit()
        assert (workers.waiting, workers.waiting_bytes) == (0, 0)


async def test_a_worker_that_is_killed_fails_its_question_alone(workers: SchemaWorkers) -> None:
    await workers.ask("s", PLAIN)
    [worker] = psutil.Process(workers.server_pid).children()
    asking = asyncio.create_task(workers.ask("s", SLOW))
    await asyncio.sleep(0.03)
    worker.kill()
    with pytest.raises(SchemaCheckUnavailable, match="try again"):
        await asking
    assert await workers.ask("s", PLAIN) == Misfit()
    os.kill(workers.server_pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(SchemaCheckUnavailable):
                assert await workers.ask("s", PLAIN) == Misfit()
                return


async def test_a_worker_that_cannot_be_had_is_an_answer() -> None:
    async with contextlib.aclosing(SchemaWorkers(HELD, ["/nothing/here"])) as workers:
        with pytest.raises(SchemaCheckUnavailable, match="try again"):
            await workers.ask("s", PLAIN)
    with pytest.raises(SchemaCheckUnavailable, match="stopping"):
        await workers.ask("s", PLAIN)


def test_the_processes_end_with_their_broker() -> None:
    """Also during a question: the kernel kills them when the broker is killed."""
    program = textwrap.dedent(
        """
        import asyncio
        from octavo.process.schema_workers import Bounds, SchemaWorkers
        from tests.unit.octavo.test_schema_workers import PLAIN, SLOW

        async def main():
            workers = SchemaWorkers(Bounds(check_ms=600_000))
            await workers.ask("s", PLAIN)
            asking = asyncio.ensure_future(workers.ask("s", SLOW))
            await asyncio.sleep(0.05)
            print(workers.server_pid, flush=True)
            await asking

        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        server = psutil.Process(int(broker.stdout.readline()))
        processes = [server, *server.children()]
        assert len(processes) == 2
        broker.kill()
        broker.wait()
        until_s = time.monotonic() + 20
        while any(one.is_running() and one.status() != "zombie" for one in processes):
            assert time.monotonic() < until_s
            time.sleep(0.02)
