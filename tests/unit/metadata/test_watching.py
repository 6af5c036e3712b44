"""Every watcher is called, whatever other callbacks do with their watches meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from octavo.metadata.watching import StandingWatch, WatchKey, WatchTable

KEYS = [WatchKey("/a", False), WatchKey("/a", True), WatchKey("/b", False)]


@pytest.mark.parametrize("seed", range(30))
def test_who_watches_all_the_time_hears_of_every_change(seed: int) -> None:
    """Callbacks cancel and add watches, of their own key and of others."""
    rng = random.Random(seed)
    table = WatchTable()
    heard: dict[int, int] = {}
    standing: dict[int, StandingWatch] = {}
    key_of: dict[int, WatchKey] = {}

    def watching(number: int) -> Callable[[], None]:
        def on_change() -> None:
            assert number in standing, "no callback comes after a cancel"
            heard[number] = heard.get(number, 0) + 1
            act()

        return on_change

    def act() -> None:
        what = rng.random()
        if what < 0.2 and standing:
            gone = rng.choice(sorted(standing))
            standing.pop(gone).cancel()
        elif what < 0.3:
            add()

    def add() -> None:
        number = len(key_of)
        key_of[number] = rng.choice(KEYS)
        standing[number] = table.add(key_of[number], watching(number))

    for _ in range(12):
        add()
    for _ in range(20):
        wanted = rng.sample(KEYS, rng.randint(1, len(KEYS)))
        there = {number for number in standing if key_of[number] in wanted}
        heard.clear()
        table.notify(wanted)
        for number in there & standing.keys():
            assert heard.get(number) == 1, f"seed {seed}: watch {number} of {key_of[number]}"
        while len(standing) < 8:
            add()
    for watch in standing.values():
        watch.cancel()
        watch.cancel()
    assert not list(table)
