"""Append times in the simulator: drawn for a seed, and the referee of what messages are shown with.

P66: of a topic with `message_time: append` each message has one time, which every reader sees, in
the log, in its copies and in its views: no earlier than its sending, no later than its ack, by the
clocks that its owners may have had, and never earlier than that of a message before it. Of one
without, none has.
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
"""What clocks may wander in a seed without having been set."""
_PAUSE_S = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    """One seed's."""

    how: str
    """`create`; `append`; `changes`: now this, now that."""

    def over(self, settings: TopicSettings) -> TopicSettings:
        """The topic's settings with it."""
        if self.how == "create":
            return settings
        return replace(settings, policies=replace(settings.policies, message_time="append"))


def draw(rng: random.Random) -> AppendOptions:
    """From a stream of their own: a seed that draws none is the run that it was without."""
    return AppendOptions(how=rng.choices(("create", "append", "changes"), (5, 2, 1))[0])


class AppendAudit:
    """One seed's."""

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
        """Somebody was given the message there with this append time, or without any."""
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
        """All that was ever seen of a log, in its order."""
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
            repeated = log.repeats_allowed and message.place[0] == -1  # this may be the second one
            late = message.acked_ms and not repeated and time_ms > message.acked_ms + most_ms
            if late or (message.sent_ms and time_ms < message.sent_ms + least_ms):
                self._fail(
                    f"P66 {log.name} offset {offset} {message.value!r} was appended at {time_ms}, "
                    f"sent at {message.sent_ms} and acked at {message.acked_ms}; clocks were off "
                    f"by {least_ms} to {most_ms}"
                )
                return


async def change_policy(load: TopicLoad, client: TopicClient) -> None:
    """A client's life: now the messages are to have this time, now that."""
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
