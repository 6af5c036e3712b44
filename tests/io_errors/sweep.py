"""Makes every call of a life fail, one after the other, and checks the result. While the
process lives, an acked entry can be read, or an explicit error says why not. A failed sync
ends the process, and no promise follows it; a full disk does not. Afterwards, on a healthy
disk, it starts and has every acked entry."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator

from octavo.protocol.codes import Code
from tests.io_errors.faults import KINDS, FailingCalls, Fault
from tests.io_errors.life import FailingLife
from tests.sim.disk import SimDisk
from tests.sim.disk_faults import DiskFaults
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.engine_lab.check import check_disk
from tests.support.engine_lab.life import PAYLOAD_BYTES, Broken, CheckLoop, payload, silence, tinier
from tests.support.storage_support import make_run

ENDS = ("killed", "power failure")
_HEALED = 90


def count_calls() -> tuple[int, int]:
    """Count the calls of a life without faults: (all, those that take space)."""
    faults = FailingCalls(None)
    loop = SimLoop(1, trace=Trace())
    life = FailingLife(SimDisk(), faults)
    life.disk.faults = faults
    with tinier():
        loop.run_until_complete(life.live())
        assert not life.dead, life.fatal or life.ended
        assert all(what != "refused" for what, _, _ in life.facts)
        loop.run_until_complete(silence(life.storage))
    loop.close()
    return faults.calls, faults.space_calls


def all_faults(stride: int = 1) -> Iterator[Fault]:
    """Yield every call with every kind of fault; with a stride, every n-th call, of all kinds
    in turn."""
    calls, space_calls = count_calls()
    for number, (error, length) in enumerate(KINDS):
        last = space_calls if error == "ENOSPC" else calls
        for at in range(1 + number % stride, last + 1, stride):
            yield Fault(at, error, length)


def sweep(faults: Iterable[Fault]) -> Counter[str]:
    ends: Counter[str] = Counter()
    for fault in faults:
        for end in ENDS:
            try:
                ends[_try(fault, end)] += 1
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                raise Broken(f"{fault}, {end}: {what}") from error
    return ends


def _try(fault: Fault, end: str) -> str:
    calls = FailingCalls(fault)
    disk = SimDisk(rng=None)
    disk.faults = calls
    life = FailingLife(disk, calls)
    loop = SimLoop(1, trace=Trace())
    with tinier():
        loop.run_until_complete(life.live())
        found = loop.run_until_complete(_after(life, fault))
        errors = list(loop.errors)
        loop.close()
        assert not errors, errors
        disk.faults = DiskFaults()
        disk.kill() if end == "killed" else disk.crash()
        loop = CheckLoop(1, trace=Trace())
        try:
            loop.run_until_complete(check_disk(disk, life.facts, sure=False))
        except Exception as error:
            error.add_note(f"failed: {calls.failed[:5]}; promised: {life.facts}")
            raise
        finally:
            loop.close()
    return found


async def _after(life: FailingLife, fault: Fault) -> str:
    calls = life.faults
    if not life.dead:
        await life.settle()
    if not calls.failed:
        return "never reached"
    if calls.sync_failed and not life.dead:
        raise Broken(f"lives on although a sync failed: {calls.failed}")
    if fault.error == "ENOSPC" and life.fatal and not calls.sync_failed:
        raise Broken(f"a full disk ended it: {life.fatal[0]} at {calls.failed[0]}")
    if life.ended is not None:
        found = life.ended_by
    elif life.fatal:
        await _promises_nothing(life)
        found = "stopped the process"
    else:
        calls.heal()
        await _takes_adds_again(life)
        await life.read_all()
        found = "went on"
    if life.ended is None:
        await silence(life.storage)
    return f"{fault.error} {'once' if fault.calls == 1 else 'for long'}: {found}"


async def _promises_nothing(life: FailingLife) -> None:
    codes: list[Code] = []
    run = make_run(_HEALED, 0, [payload(_HEALED, 0, PAYLOAD_BYTES)])
    life.note(f"tried {PAYLOAD_BYTES}", _HEALED, 0)
    life.storage.add([run], lambda results: codes.extend(code for _, code in results))
    await life.settle()
    if Code.OK in codes:
        raise Broken("acked after it had failed")


async def _takes_adds_again(life: FailingLife) -> None:
    for number in range(60):
        await life.add(_HEALED, number)
        if ("acked", _HEALED, number) in life.facts:
            return
        await asyncio.sleep(1)
    raise Broken("the disk works again, and adds are still refused a minute later")
