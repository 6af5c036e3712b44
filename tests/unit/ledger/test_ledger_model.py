"""A writer and recoverers in every order of their messages: the production state machines.

Every message that is under way may be delivered next, in any order; each reachable state is
visited once and checked. The long model checks take more entries, crashes and recoverers; this is
the quick one, and it must find planted bugs, or it proves nothing.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable

import pytest

from ledger import recovering
from ledger.actions import Done
from ledger.quorum import Quorum
from metadata.ledgers import LedgerState
from tests.ledger_world import Agent, Owner, Recoverer, World, new_ledger

Scene = tuple[World, Owner, tuple[Recoverer, ...]]
STATES_MAX = 60_000


def check(scene: Scene) -> None:
    """S2, S3, P5, and that an ended writer acks nothing (in `Owner.take`)."""
    world, owner, recoverers = scene
    metadata = world.metadata
    results = [r.result for r in recoverers if isinstance(r.result, Done)]
    assert len({(d.metadata.last_entry, d.metadata.length) for d in results}) <= 1, "S2: two ends"
    if metadata.state is not LedgerState.CLOSED:
        return
    assert owner.acked <= metadata.last_entry, (
        f"S3: entry {owner.acked} was acked, the ledger ends at {metadata.last_entry}"
    )
    assert metadata.length == 10 * (metadata.last_entry + 1), "P11"
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    for entry_id in range(metadata.last_entry + 1):
        bookies = metadata.fragment_of(entry_id).bookies
        copies = [entry_id in world.bookies[bookies[p]].entries for p in quorum.write_set(entry_id)]
        assert sum(copies) >= quorum.ack_quorum, f"P5: entry {entry_id} has {sum(copies)} copies"


def agents(scene: Scene) -> list[Agent]:
    return [scene[1], *scene[2]]


def moves(scene: Scene) -> list[tuple[int, int]]:
    """(agent, index) of every message that may be delivered next; equal ones once."""
    found: list[tuple[int, int]] = []
    for number, agent in enumerate(agents(scene)):
        seen: set[str] = set()
        for index, envelope in enumerate(agent.inbox):
            if envelope.label not in seen:
                seen.add(envelope.label)
                found.append((number, index))
    return found


def key_of(scene: Scene) -> int:
    """Scenes that differ only in the order of what is under way are one state."""
    for agent in agents(scene):
        agent.settle()
    return hash((scene[0].key(), *(agent.key() for agent in agents(scene))))


def explore(start: Scene) -> int:
    """Visit every state; the number of states."""
    seen = {key_of(start)}
    stack = [pickle.dumps(start, -1)]
    while stack:
        packed = stack.pop()
        for number, index in moves(pickle.loads(packed)):
            scene: Scene = pickle.loads(packed)
            agents(scene)[number].deliver(index)
            check(scene)
            key = key_of(scene)
            if key not in seen:
                seen.add(key)
                stack.append(pickle.dumps(scene, -1))
                assert len(seen) < STATES_MAX, "the model has grown: make it smaller"
    return len(seen)


def new_scene(
    entries: int, recoverers: int, bookies: str = "abc", shape: tuple[int, int, int] = (3, 3, 2)
) -> Scene:
    world = World(bookies, new_ledger(*shape))
    owner = Owner(world)
    for _ in range(entries):
        owner.add()
    found = tuple(Recoverer(world, f"r{n}") for n in range(recoverers))
    for recoverer in found:
        recoverer.start()
    return world, owner, found


@pytest.fixture(autouse=True)
def _short_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering, "READ_AHEAD_MIN", 1)
    monkeypatch.setattr(recovering, "READ_AHEAD_MAX", 1)


@pytest.mark.parametrize(
    ("shape", "states_min"),
    [
        ((2, 2, 1), 250),
        ((2, 2, 2), 400),
        pytest.param((3, 3, 2), 9_000, marks=pytest.mark.slow),
    ],
)
def test_a_writer_and_a_recoverer_in_every_order(
    shape: tuple[int, int, int], states_min: int
) -> None:
    """One entry under way when the recovery begins."""
    states = explore(new_scene(1, 1, "abc"[: shape[0]], shape))
    assert states > states_min, "the model has shrunk: it does not say what it said"


def test_the_check_finds_reads_that_do_not_fence() -> None:
    """BookKeeper #2614, planted: an acked entry is cut off."""
    scene = new_scene(1, 1)
    scene[0].reads_fence = False
    with pytest.raises(AssertionError, match="S3"):
        explore(scene)


def test_the_check_finds_an_end_proved_by_one_denial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quorum, "denials", 1)
    with pytest.raises(AssertionError, match="S3"):
        explore(new_scene(1, 1))


def walk(scene: Scene, rng: random.Random, crash: bool) -> None:
    """One random schedule, to its end."""
    world = scene[0]
    crashes = rng.randrange(40) if crash else -1
    step = 0
    while found := moves(scene):
        if step == crashes:
            world.bookies[rng.choice("abc")].up = False
        number, index = rng.choice(found)
        agents(scene)[number].deliver(index)
        check(scene)
        step += 1


@pytest.mark.parametrize("crash", [False, True])
def test_a_writer_two_recoverers_and_a_crash_in_random_orders(crash: bool) -> None:
    """Two entries; seeds are the loop's numbers."""
    ends: set[tuple[str, int]] = set()
    for seed in range(400):
        rng = random.Random(seed)
        scene = new_scene(2, 2, "abcd" if seed % 2 else "abc")
        walk(scene, rng, crash)
        world, owner, recoverers = scene
        done = [isinstance(r.result, Done) for r in recoverers]
        if not crash:
            assert all(done), f"seed {seed}: recovery does not end"
            assert owner.ended or owner.acked == 1
        if any(done):
            ends.add((world.metadata.state.name, world.metadata.last_entry))
    assert len(ends) > 1, "the schedules are too alike"


def random_walks_find(plant: Callable[[Scene], None]) -> bool:
    for seed in range(400):
        scene = new_scene(2, 2, "abcd")
        plant(scene)
        try:
            walk(scene, random.Random(seed), crash=True)
        except AssertionError:
            return True
    return False


def test_random_schedules_find_planted_bugs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fence_on_reads(scene: Scene) -> None:
        scene[0].reads_fence = False

    assert random_walks_find(no_fence_on_reads)
    monkeypatch.setattr(Quorum, "covers", lambda self, answered: len(answered) >= 1)
    monkeypatch.setattr(Quorum, "denials", 1)
    assert random_walks_find(lambda scene: None)
