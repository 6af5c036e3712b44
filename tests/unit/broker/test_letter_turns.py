"""Dead letters in memory at once: a topic that takes none delays no other topic's."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from octavo.broker.cluster import dead_letters
from octavo.broker.cluster.dead_letters import SENDERS_MAX, SLOW_S, Turns
from octavo.broker.types import TopicName


class Desk:
    """Senders that keep their turns until they are released."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = Turns(SENDERS_MAX, lambda: self.now_s)
        self.holding: list[TopicName] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _hold(self, topic: TopicName) -> None:
        async with self.turns.turn(topic):
            self.holding.append(topic)
            await asyncio.Event().wait()

    async def begin(self, *topics: TopicName) -> None:
        self.tasks += [asyncio.create_task(self._hold(topic)) for topic in topics]
        for _ in range(5):
            await asyncio.sleep(0)

    async def send(self, topic: TopicName, takes_s: float = 0.0, *, fails: bool = False) -> None:
        with suppress(ConnectionError):
            async with self.turns.turn(topic):
                self.now_s += takes_s
                if fails:
                    raise ConnectionError

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert not self.turns._shares, "what was taken is given back"


def topics(namespace: str, count: int) -> list[TopicName]:
    return [TopicName(namespace, f"t{number}") for number in range(count)]


async def test_one_topic_and_one_namespace_have_a_share() -> None:
    desk = Desk()
    (full,) = topics("a", 1)
    await desk.begin(*[full] * 50)
    assert desk.holding == [full] * (SENDERS_MAX // 8)
    await desk.begin(*topics("a", 50))
    assert len(desk.holding) == SENDERS_MAX // 4
    await asyncio.wait_for(desk.send(TopicName("b", "t")), 5)
    await desk.end()


async def test_topics_that_take_nothing_hold_up_no_other() -> None:
    """Sixteen letters to full topics of a tenant waited, and all other letters behind them."""
    desk = Desk()
    slow = [one for number in range(40) for one in topics(f"n{number}", 2)]
    for topic in slow:
        await desk.send(topic, SLOW_S, fails=True)
    await desk.begin(*slow)
    assert len(desk.holding) == SENDERS_MAX // 4, "they share a few turns of their own"
    assert len({topic.namespace for topic in desk.holding}) == len(desk.holding)
    await asyncio.wait_for(desk.send(TopicName("b", "t")), 5)
    await desk.end()


async def test_a_topic_that_took_one_is_as_any_other() -> None:
    desk = Desk()
    (topic,) = topics("a", 1)
    await desk.send(topic, SLOW_S, fails=True)
    await desk.send(topic)
    await desk.begin(*[topic] * 3)
    assert len(desk.holding) == SENDERS_MAX // 8
    await desk.end()
    await desk.send(topic, SLOW_S / 2, fails=True)
    assert not desk.turns._doubtful, "it was refused at once: that held up nobody"


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "DOUBTFUL_MAX", 3)
    desk = Desk()
    for topic in topics("a", 5):
        await desk.send(topic, SLOW_S, fails=True)
    assert list(desk.turns._doubtful) == topics("a", 5)[2:]


@pytest.mark.parametrize("first", ["doubtful", "sound"])
async def test_topics_in_doubt_and_others_of_one_namespace_take_no_turns_of_each_other(
    first: str,
) -> None:
    """Good topics have a quarter of all turns, doubtful topics a single turn."""
    desk = Desk()
    doubtful, sound = topics("a", 2), [TopicName("a", f"s{number}") for number in range(50)]
    for topic in doubtful:
        await desk.send(topic, SLOW_S, fails=True)
    for part in (doubtful, sound) if first == "doubtful" else (sound, doubtful):
        await desk.begin(*part)
    assert sum(one in doubtful for one in desk.holding) == 1
    assert sum(one in sound for one in desk.holding) == SENDERS_MAX // 4
    await desk.end()
