"""Only a record that is certainly missing proves that a ledger is gone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.bookie.gc.deletion_proof import DeletionProof
from octavo.metadata.store import BadRecord, MetadataUnavailable, RecordNotFound

STATES = ("there", "gone", "bad", "missing from the listing", "bad and not listed")


class Ledgers:
    """Ledger records; a listing may omit some."""

    def __init__(self, states: dict[int, str], *, silent: bool) -> None:
        self.states = states
        self.silent = silent

    async def instance_id(self) -> str:
        return "this"

    async def list(self) -> list[int]:
        return [found for found, state in self.states.items() if state in ("there", "bad")]

    async def read(self, ledger_id: int) -> None:
        if self.silent:
            raise MetadataUnavailable("no answer")
        state = self.states[ledger_id]
        if state == "gone":
            raise RecordNotFound("no record")
        if "bad" in state:
            raise BadRecord("cannot be read")


class Store:
    url = "test:"

    async def sync(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(30))
async def test_what_is_proven_gone_has_no_record(seed: int) -> None:
    rng = random.Random(seed)
    states = {number: rng.choice(STATES) for number in range(20)}
    store: Any = Store()
    ledgers: Any = Ledgers(states, silent=False)
    proven = await DeletionProof(store, ledgers, "this").prove(list(states))
    assert sorted(proven.gone) == [one for one, state in states.items() if state == "gone"]
    assert not set(proven.gone) & set(proven.present)
    assert {one for one, state in states.items() if state == "there"} <= set(proven.present)


async def test_silence_is_no_proof() -> None:
    store: Any = Store()
    ledgers: Any = Ledgers({1: "gone"}, silent=True)
    with pytest.raises(MetadataUnavailable):
        await DeletionProof(store, ledgers, "this").prove([1])
