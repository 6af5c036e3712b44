from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.support.metadata_trees import (
    MemoryTree,
    SimulatedTree,
    Tree,
    embedded_tree,
    zookeeper_tree,
)

__all__ = ["embedded_tree", "zookeeper_tree"]

DEADLINE_S = 40.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    found = pyfuncitem.funcargs.get("tree")
    if not isinstance(found, SimulatedTree):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    found.loop.run_until_complete(inspect.unwrap(pyfuncitem.obj)(**wanted))
    return True


@pytest.fixture
def simulated_tree() -> Iterator[SimulatedTree]:
    tree = SimulatedTree()
    yield tree
    tree.loop.close()
    assert not tree.loop.errors


@pytest.fixture
def memory_tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture(
    params=[
        "embedded",
        "simulated",
        "memory",
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    ]
)
def tree(request: pytest.FixtureRequest) -> Tree:
    found: Tree = request.getfixturevalue(f"{request.param}_tree")
    return found


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], Awaitable[None]]:
    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                held = condition()
                if isinstance(held, Awaitable):
                    held = await held
                if held:
                    return
                await asyncio.sleep(0.005)

    return wait
