"""Append times: the options of a seed, and the referee of P66 (docs/properties.md).

By the clocks that the owners may have had, a time is not before the message's sending and not after
its ack.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.broker.types import TopicSettings
from tests.sim.clocks import Clocks
from tests.sim.topic_client import EXPECTED, TopicClient
from tests.sim.trace import Trace

if TYPE_CHECKING:
    from tests.sim.topic_audit import LogHistory
    from tests.sim.topic_load import TopicLoad

_SLACK_MS = 150
"""How far clocks may drift in a seed without being set."""
_PAUSE_S = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    how: str
    """`create`; `append`; `changes`: the setting changes during the seed."""

    def over(self, settings: TopicSettings) -> TopicSettings:
        if self.how == "create":
            return settings
        return replace(settings, policies=replace(settings.policies, message_time="append"))


def draw(rng: random.Random) -> AppendOptions:
    """Draw the options from a separate stream, so that other seeds stay as they were."""
    return AppendOptions(how=rng.choices(("create", "append", "changes"), (5, 2, 1))[0])


class AppendAudit:
    def __init__(
        self,
        how: str,
        clocks: Clocks,
        now_ms: Callable[[], int],
        trace: Trace,
        fail: Callable[[str], None],
    ) -> None:
        self.how = how
        self.now_ms = now_ms
        self._clocks = clocks
        self._began_ms = now_ms()
        self._trace = trace
        self._fail = fail

    def shown(self, log: LogHistory, offset: int, time_ms: int | None, who: str) -> None:
        """Note that a reader got the message with this append time, or without any."""
        where = f"P66 {log.name} offset {offset}: {who} sees append time {time_ms}"
        if (time_ms is None) != (self.how == "create") and self.how != "changes":
            self._fail(f"{where}, the topic says {self.how}")
        seen_ms = -1 if time_ms is None else time_ms
        known = log.appended.setdefault(offset, seen_ms)
        if known != seen_ms:
            self._fail(f"{where}, before it was {known}")
        if time_ms is not None:
            self._trace.probe(f"append.seen_by_{who.split()[0]}")

    def check(self, log: LogHistory) -> None:
        slack_ms = _SLACK_MS + (self.now_ms() - self._began_ms) // 50
        least_ms, most_ms = self._clocks.least_ms - slack_ms, self._clocks.most_ms + slack_ms
        last_ms = -1
        for offset, time_ms in sorted(log.appended.items()):
            message = log.at.get(offset)
            if message is None or time_ms < 0:
                continue
            if time_ms < last_ms:
                self._fail(
                    f"P66 {log.name} offset {offset} {message.value!r} was appended at {time_ms}, "
                    f"one before it at {last_ms}"
                )
                return
            last_ms = time_ms
            # the time may be that of the second copy
            repeated = log.repeats_allowed and message.place[0] == -1
            late = message.acked_ms and not repeated and time_ms > message.acked_ms + most_ms
            if late or (message.sent_ms and time_ms < message.sent_ms + least_ms):
                self._fail(
                    f"P66 {log.name} offset {offset} {message.value!r} was appended at {time_ms}, "
                    f"sent at {message.sent_ms} and acked at {message.acked_ms}; clocks were off "
                    f"by {least_ms} to {most_ms}"
                )
                return


async def change_policy(load: TopicLoad, client: TopicClient) -> None:
    """Change the topic's setting again and again, as a client."""
    name, said = load.partitions[0].topic_name, load.options.settings
    while not load.over:
        await client.pause(_PAUSE_S)
        word = client.rng.choice(("create", "append"))
        said = replace(said, policies=replace(said.policies, message_time=word))
        try:
            await client.with_broker(lambda broker, s=said: broker.topics.update(name, s))
        except EXPECTED:
            continue
        load.cluster.trace.probe(f"append.changed_to_{word}")
