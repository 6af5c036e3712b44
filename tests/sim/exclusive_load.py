"""Exclusive producers and their referee.

From the start offset that a producer gets to the last message of its epoch, no message of another
producer may lie. No epoch is given twice. Options come from a separate stream, so other seeds stay
as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.broker.errors import StaleProducerAccess
from octavo.broker.types import PartitionName, Published
from tests.sim.topic_client import EXPECTED, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_SHARE = 0.3
_SESSION_MS = (50, 300, 2_000)
_BATCHES_MAX = 5
_FREE_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveOptions:
    producers: int = 0
    fencing_p: float = 0.5
    release_p: float = 0.7


def draw(rng: random.Random) -> ExclusiveOptions:
    if rng.random() >= _SHARE:
        return ExclusiveOptions()
    return ExclusiveOptions(
        producers=rng.choice((1, 2, 3)),
        fencing_p=rng.choice((0.2, 0.8)),
        release_p=rng.choice((0.3, 0.9)),
    )


class ExclusiveLoad:
    def __init__(self, load: TopicLoad, options: ExclusiveOptions) -> None:
        self.load = load
        self.options = options
        self.over: Callable[[], bool] = lambda: False
        self._starts: dict[PartitionName, dict[int, int]] = {}
        """Epoch → first offset from which only its messages may lie."""
        self._epochs: dict[str, int] = {}
        """Value → the epoch that it was published with."""

    def clients(self) -> list[TopicClient]:
        numbers = range(1, self.options.producers + 1)
        return [TopicClient(self.load, f"x{number}", self._live) for number in numbers]

    def free(self) -> None:
        """Release the access of dead producers when the faults are over, so that others can
        finish."""
        TopicClient(self.load, "freer", self._free).start()

    async def _free(self, client: TopicClient) -> None:
        while not self.over():
            for name in self.load.partitions:
                if self.over():
                    return  # the last broker may have ended during the call
                try:
                    state, _ = await client.ask(
                        name,
                        lambda p: p.acquire_access("freer", session_ms=1_000, fencing=True),
                    )
                    await client.ask(name, lambda p, e=state.epoch: p.release_access(e))
                except EXPECTED:
                    pass
            await client.pause(_FREE_PAUSE_S)

    async def _live(self, client: TopicClient) -> None:
        rng, options = client.rng, self.options
        while not self.load.is_full:
            name = rng.choice(self.load.partitions)
            fencing, session_ms = rng.random() < options.fencing_p, rng.choice(_SESSION_MS)
            who = f"{client.name}.{client.run}"
            try:
                state, start = await client.ask(
                    name,
                    lambda p, w=who, s=session_ms, f=fencing: p.acquire_access(
                        w, session_ms=s, fencing=f
                    ),
                )
            except EXPECTED:
                await client.pause(self.load.options.pause_s)
                continue
            self._acquired(name, state.epoch, start)
            await self._publish(client, name, state.epoch)
            if rng.random() < options.release_p:
                try:
                    await client.ask(name, lambda p, e=state.epoch: p.release_access(e))
                except EXPECTED:
                    pass
            await client.pause(self.load.options.pause_s)

    async def _publish(self, client: TopicClient, name: PartitionName, epoch: int) -> None:
        log = self.load.audit.logs[name]
        for _ in range(client.rng.randint(1, _BATCHES_MAX)):
            values = self.load.values(client)
            log.sends(values, client.name, -1, self.load.take_numbers(0))
            self._epochs.update(dict.fromkeys(values, epoch))
            batch = self.load.batch(client, values)
            try:
                published: Published = await client.ask(
                    name, lambda p, b=batch: p.publish(b, access=epoch)
                )
                log.acked(values, published.first_offset, duplicate=published.duplicate)
                self.load.cluster.trace.probe("topic.exclusive_published")
            except StaleProducerAccess:
                self.load.cluster.trace.probe("topic.exclusive_fenced")
                if self.load.options.definite:
                    log.refused(values)
                return
            except EXPECTED:
                pass
            await client.pause(self.load.options.pause_s)

    def _acquired(self, name: PartitionName, epoch: int, start: int) -> None:
        starts = self._starts.setdefault(name, {})
        if epoch in starts:
            self.load.audit.fail(f"S9 {name}: access epoch {epoch} was given twice")
        starts[epoch] = start

    def check(self) -> None:
        for name, starts in self._starts.items():
            at = self.load.audit.logs[name].at
            epochs = {offset: self._epochs.get(one.value, 0) for offset, one in at.items()}
            for epoch, start in starts.items():
                last = max((offset for offset, one in epochs.items() if one == epoch), default=-1)
                for offset in range(start, last + 1):
                    if offset in epochs and epochs[offset] != epoch:
                        self.load.audit.fail(
                            f"S9 {name} offset {offset}: {at[offset].value} of access epoch "
                            f"{epochs[offset] or None} lies between {start}, from where on epoch "
                            f"{epoch} was alone, and its last message, {last}"
                        )
