"""Cut a `Settle` into small parts, so that other calls have their turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import TypedDict

from octavo.broker.log.open_batches import Turns
from octavo.broker.operations.kinds import Settle
from octavo.broker.types import AckRange, Nack
from octavo.protocol.ack_ids import in_steps

ACKS_A_STEP = 1_000


class Part(TypedDict, total=False):
    ack_ids: list[str]
    nacks: list[Nack]
    extend: list[str]
    release: list[str]


async def parts_of(operation: Settle, turns: Turns) -> AsyncGenerator[Part, None]:
    count = _count(operation)
    if count <= ACKS_A_STEP:
        await turns.take(count)
        yield {
            "ack_ids": operation.acks,
            "nacks": operation.nacks,
            "extend": operation.extend,
            "release": operation.release,
        }
        return
    spans = [await _span(one.ack_id, turns) for one in operation.nacks]
    for ack_ids in (operation.acks, operation.extend, operation.release):
        for ack_id in ack_ids:  # check all before the first takes effect
            await _span(ack_id, turns)
    for some in in_steps(operation.acks, ACKS_A_STEP):
        await turns.take(ACKS_A_STEP)
        yield {"ack_ids": some}
    for cut in _nacks_in_steps(operation.nacks, spans):
        await turns.take(ACKS_A_STEP)
        yield {"nacks": cut}
    for some in in_steps(operation.extend, ACKS_A_STEP):
        await turns.take(ACKS_A_STEP)
        yield {"extend": some}
    for some in in_steps(operation.release, ACKS_A_STEP):
        await turns.take(ACKS_A_STEP)
        yield {"release": some}


def _count(operation: Settle) -> int:
    """Count the named messages; above `ACKS_A_STEP` a lower bound."""
    ack_ids = [*operation.acks, *operation.extend, *operation.release]
    ack_ids += [one.ack_id for one in operation.nacks]
    count = len(ack_ids)
    if count > ACKS_A_STEP:
        return count
    for ack_id in ack_ids:
        if ":" in ack_id:
            found = AckRange.parse(ack_id)
            count += found.end - found.start - 1
    return count


async def _span(ack_id: str, turns: Turns) -> tuple[int, int]:
    await turns.take(1)
    found = AckRange.parse(ack_id)
    return found.start, found.end


def _nacks_in_steps(nacks: list[Nack], spans: list[tuple[int, int]]) -> Iterable[list[Nack]]:
    """Yield the last nacks first: each also gives back its key's later messages."""
    found: list[Nack] = []
    room = ACKS_A_STEP
    for at in sorted(range(len(nacks)), key=spans.__getitem__, reverse=True):
        nack, (start, end) = nacks[at], spans[at]
        if end - start == 1:
            cut = [nack]
        else:
            steps = in_steps([nack.ack_id], ACKS_A_STEP)
            cut = [Nack(one, nack.delay_ms) for some in steps for one in some][::-1]
        for one in cut:
            found.append(one)
            room -= min(end - start, ACKS_A_STEP)
            if room <= 0:
                yield found
                found, room = [], ACKS_A_STEP
    if found:
        yield found
