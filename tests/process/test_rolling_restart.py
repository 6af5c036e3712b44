"""Every process is stopped and started again, one after the other, under load, as for a new
version. No call fails, and no message waits long."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.support.kit.history import Call
from tests.support.processes.chaos import SESSION_MS, Breaker, run_round
from tests.support.processes.kills import LaunchedSupervisor
from tests.support.processes.users import Record
from tests.support.processes.waiting import everybody_registered, more_acked

pytestmark = pytest.mark.long

ACK_S_MAX = 10.0
"""The longest wait for an ack, on a machine that runs other tests."""


@pytest.mark.timeout(600)
async def test_a_rolling_restart_is_noticed_by_nobody(tmp_path: Path) -> None:
    said: list[str] = []

    async def trouble(breaker: Breaker, record: Record) -> None:
        supervisor = breaker.supervisor
        assert isinstance(supervisor, LaunchedSupervisor)
        await more_acked(record, 200)
        for name, child in supervisor.launched.items():
            supervisor.signal(name, signal.SIGTERM)
            assert await supervisor.until_dead(name), f"{name} does not end"
            said.append(f"{name}: {child.exit_text}")
            await supervisor.resume(name)
            await more_acked(record, 100)
        await everybody_registered(supervisor.cluster.urls)

    outcome = await run_round(
        tmp_path / "data", random.Random(11), trouble, make_supervisor=LaunchedSupervisor
    )
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert {one.partition(": ")[2] for one in said} == {"exit code 0"}, said
    sends = [one for one in outcome.record.history if one.call is Call.SEND]
    waits = sorted((one.completed_at or 1e9) - one.invoked_at for one in sends)
    print(
        f"{len(said)} restarts, {len(waits)} messages; waited p50 {waits[len(waits) // 2]:.3f} s, "
        f"p99 {waits[len(waits) * 99 // 100]:.3f} s, at most {waits[-1]:.3f} s"
    )
    assert waits[-1] < ACK_S_MAX, f"a message waited {waits[-1]:.1f} s for its ack"
    assert waits[len(waits) // 2] < SESSION_MS / 1000
