"""A ledger client that was closed amid a recovery ended with a RuntimeError.

`close` gives every bookie's connection up. Who listens is told, and a recovery turns to a spare at
once: a bookie that nobody had spoken to yet, so that the dict changed under the loop over it. Its
tasks went on, and a broker that was told to stop did not end in good order. Found by running all
profiles of the simulator over the same seeds (606, topic); that seed had failed without its name.
"""

from __future__ import annotations

from pathlib import Path

from octavo.ledger.bookies.bookies import Bookies
from octavo.ledger.errors import BookieUnavailable
from tests.support.cluster import running_cluster
from tests.support.raw_bookie import until


class TurnsToASpare:
    """As a recovery does."""

    def __init__(self, bookies: Bookies) -> None:
        self.bookies = bookies
        self.told: list[str] = []

    def bookie_up(self, bookie_id: str) -> None: ...

    def bookie_writable(self, bookie_id: str) -> None: ...

    def bookie_down(self, bookie_id: str, error: BookieUnavailable) -> None:
        self.told.append(bookie_id)
        if bookie_id == "b1":
            self.bookies.get("b2").listen(self)


async def test_who_is_told_of_the_end_may_turn_to_another_bookie(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        client = await cluster.client()
        bookies = client.bookies
        listener = TurnsToASpare(bookies)
        bookies.get("b1").listen(listener)
        await until(lambda: bookies.get("b1").is_up)
        await cluster.drop_client(client)
        assert listener.told == ["b1"]
        assert not bookies.get("b2").is_up, "nobody would close that connection"
