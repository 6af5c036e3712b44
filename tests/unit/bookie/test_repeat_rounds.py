"""Adds in any order: batches without a common entry wait together, others one after another. 1,000
adds in disorder took 3 s, because each waited for its own sync."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.write.duplicate_adds import next_round
from octavo.protocol.codes import Code
from tests.support.raw_bookie import RawClient, add_of, running_bookie


class Waiting:
    """The part of a waiting add that the round looks at."""

    def __init__(self, first: int, last: int) -> None:
        self.batch = type("Batch", (), {"first_entry": first, "last_entry": last})


@pytest.mark.parametrize("seed", range(50))
def test_a_round_is_the_longest_front_without_a_common_entry(seed: int) -> None:
    rng = random.Random(seed)
    spans = []
    for _ in range(rng.randint(1, 30)):
        first = rng.randint(0, 60)
        spans.append((first, first + rng.choice((0, 0, 0, 1, 5))))
    wanted: list[tuple[int, int]] = []
    taken: set[int] = set()
    for first, last in spans:
        ids = set(range(first, last + 1))
        if ids & taken:
            break
        taken |= ids
        wanted.append((first, last))
    line: Any = deque(Waiting(*span) for span in spans)
    found = next_round(line)
    assert [(one.batch.first_entry, one.batch.last_entry) for one in found] == wanted
    assert len(line) == len(spans) - len(wanted)


@pytest.mark.parametrize("order", ["backwards", "mixed"])
async def test_adds_in_disorder_share_their_syncs(tmp_path: Path, order: str) -> None:
    ids = list(range(300))
    ids.reverse() if order == "backwards" else random.Random(1).shuffle(ids)
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie)
        groups: list[object] = []
        bookie.storage.write_stats.on_group = groups.append
        client.send(b"".join(add_of(1, entry_id) for entry_id in ids))
        acked = await client.acked(len(ids))
        assert sorted(acked) == [(1, entry_id) for entry_id in range(300)]
        assert len(groups) < 60
        assert await bookie.storage.reads.entries(1) == [(0, 299)]
        assert bookie.storage.duplicate_adds.describe() == dict.fromkeys(
            ("batches", "bytes", "lines", "tasks"), 0
        )
        client.close()


async def test_the_same_entry_twice_in_disorder_is_kept_once(tmp_path: Path) -> None:
    """A different entry under its id is refused, also when both wait at the same time."""
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 9)) is Code.OK
        same, other = add_of(1, 3), add_of(1, 3, payload=b"another")
        client.send(add_of(1, 4) + same + same + other + add_of(1, 2))
        answers = [await client.answer() for _ in range(5)]
        refused = [one for one in answers if getattr(one, "code", Code.OK) is not Code.OK]
        assert len(refused) == 1
        client.close()
