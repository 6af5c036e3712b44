"""The writer's state machine with acks before syncs: what is answered, what is confirmed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from octavo.ledger.actions import (
    ChooseReplacements,
    Confirmed,
    EnsembleChanged,
    Send,
    WriteMetadata,
    Written,
)
from octavo.ledger.actions import WriterAction as Action
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.write.writer_state import Force, State, WriterState
from octavo.metadata.ledgers import Fragment, LedgerMetadata


def writing(e: int = 3, qw: int = 3, qa: int = 2, *, deferred: bool = True) -> WriterState:
    metadata = LedgerMetadata(7, e, qw, qa, (Fragment(0, tuple("abcdefgh"[:e])),))
    return WriterState(metadata, 0, deferred=deferred)


def down(bookie_id: str) -> BookieUnavailable:
    return BookieUnavailable(bookie_id, "connection lost")


def forced(core: WriterState, bookie_id: str, last: int) -> list[Action]:
    """Ask the bookie for a force; it answers that it has everything up to `last`."""
    if bookie_id not in core.ensemble:
        return core.forced(Force(bookie_id, last, 0))
    return core.forced(core.to_force(core.ensemble.index(bookie_id))._replace(last_entry=last))


def told(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, Written | Confirmed)]


def test_acks_answer_and_forces_confirm() -> None:
    core = writing()
    core.push(5)
    assert core.acked("a", 0, 4) == []
    assert core.acked("b", 0, 2) == [Written(2)]
    assert (core.written_to, core.lac) == (2, -1)
    assert forced(core, "a", 4) == []
    assert forced(core, "b", 1) == [Confirmed(1)]
    assert core.acked("c", 0, 4) == [Written(4)]
    assert forced(core, "c", 4) == [Confirmed(4)]
    assert core.written_to == core.lac == 4


def test_who_failed_is_believed_nothing_that_was_not_forced() -> None:
    core = writing()
    core.push(10)
    for bookie in "ab":
        core.acked(bookie, 0, 9)
        forced(core, bookie, 3)
    assert core.lac == 3
    core.failed("a", down("a"))
    core.chosen({})
    assert core.returned("a") == [Send(0, "a", 4)]
    assert core.received.acked_to[0] == 3
    assert forced(core, "b", 9) == []
    assert core.lac == 3, "it may have lost what is above"
    core.acked("a", 4, 9)
    assert told(forced(core, "a", 9)) == [Confirmed(9)]


def test_who_replaces_it_gets_all_that_was_not_forced() -> None:
    core = writing()
    core.push(10)
    for bookie in "ab":
        core.acked(bookie, 0, 9)
        forced(core, bookie, 3)
    core.failed("a", down("a"))
    core.chosen({0: "x"})
    actions = core.written(1)
    assert [action for action in actions if isinstance(action, EnsembleChanged | Send)] == [
        EnsembleChanged(4, ("a", "b", "c"), ("x", "b", "c")),
        Send(0, "x", 4),
    ]
    assert forced(core, "a", 3) == [], "no member any more"
    forced(core, "b", 9)
    assert core.lac == 3
    core.acked("x", 4, 9)
    assert forced(core, "x", 9) == [Confirmed(9)]


def test_it_closes_at_what_is_confirmed() -> None:
    core = writing()
    core.push(4)
    for bookie in "abc":
        core.acked(bookie, 0, 3)
    forced(core, "a", 1)
    forced(core, "b", 1)
    (write,) = core.close(2)
    assert core.state is State.CLOSING
    assert write.metadata.last_entry == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 3, 2), (4, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("seed", range(20))
def test_against_a_count_of_what_is_durable(quorums: tuple[int, int, int], seed: int) -> None:
    """Bookies come, go and lose unsynced entries: a confirmed entry is on Qa of them."""
    rng = random.Random(seed)
    core = writing(*quorums)
    quorum = core.quorum
    names = list("abcdefgh"[: quorums[0]])
    volatile: dict[str, set[int]] = {name: set() for name in names}
    durable: dict[str, set[int]] = {name: set() for name in names}
    for _ in range(300):
        position = rng.randrange(len(names))
        name = names[position]
        is_down = position in core.down
        match rng.choice(("push", "ack", "ack", "force", "force", "fail", "return")):
            case "push" if core.lap < 60:
                core.push(rng.randint(1, 4))
            case "ack" if not is_down:
                reached = core.received.acked_to[position]
                last = min(core.lap, reached + rng.randint(1, 5))
                held = [n for n in range(reached + 1, last + 1) if quorum.holds(position, n)]
                if held:
                    volatile[name] |= set(held)
                    core.acked(name, held[0], held[-1])
            case "force" if not is_down:
                durable[name] |= volatile[name]
                core.forced(core.to_force(position))
            case "fail" if not is_down:
                volatile[name] = set()
                core.failed(name, down(name))
                if core.state is State.CHOOSING:
                    core.chosen({})
            case "return":
                core.returned(name)
        assert core.lac <= core.written_to <= core.lap
        for entry_id in range(core.lac + 1):
            holders = [names[p] for p in quorum.write_set(entry_id)]
            count = sum(entry_id in durable[holder] for holder in holders)
            assert count >= quorum.ack_quorum, (entry_id, core.lac)


def test_an_answer_to_a_force_that_was_asked_before_a_failure_says_nothing() -> None:
    """The bookie refuses an add while its slow force runs; the force's answer then broke the
    connection."""
    core = writing()
    core.push(10)
    for bookie in "ab":
        core.acked(bookie, 0, 9)
    slow, other = core.to_force(0), core.to_force(1)
    core.push(1)
    core.failed("a", down("a"))
    core.chosen({})
    assert core.forced(slow) == []
    assert core.acks.acked_to[0] == -1, "what it failed with is asked for anew"
    core.forced(other)
    assert core.returned("a") == [Send(0, "a", 0)]
    core.acked("a", 0, 10)
    assert core.forced(slow) == [], "what it has acked since is newer than this question"
    assert core.lac == -1
    assert told(core.forced(core.to_force(0))) == [Confirmed(9)]


def test_an_answer_to_a_force_of_a_former_membership_says_nothing() -> None:
    """The bookie was replaced and chosen again, and needs the entries that it missed meanwhile."""
    core = writing()
    core.push(4)
    for bookie in "ab":
        core.acked(bookie, 0, 3)
    old = core.to_force(0)
    core.failed("a", down("a"))
    core.chosen({0: "x"})
    core.written(1)
    core.failed("x", down("x"))
    core.chosen({0: "a"})
    core.written(2)
    core.acked("a", 0, 1)
    assert core.forced(old) == []
    assert core.acks.acked_to[0] == -1


@dataclass
class Server:
    """A bookie with its requests in flight and its progress. Only `crash` loses anything."""

    name: str
    volatile: set[int] = field(default_factory=set)
    durable: set[int] = field(default_factory=set)
    adds: list[tuple[int, int]] = field(default_factory=list)
    """Acks on their way to the writer."""
    forces: list[Force] = field(default_factory=list)
    """Forces that it has not answered."""

    def crash(self) -> None:
        """End the process; its requests in flight end with its connection."""
        self.volatile.clear()
        self.adds.clear()
        self.forces.clear()


def send(core: WriterState, server: Server, position: int, first: int, last: int) -> None:
    """Send runs to hold; each is stored at once, and acked later."""
    for entry_id in range(first, last + 1):
        if core.quorum.holds(position, entry_id):
            server.volatile.add(entry_id)
            server.adds.append((entry_id, entry_id))


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3), (5, 3, 2), (4, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("deferred", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_against_bookies_that_are_down_read_only_and_slow(
    quorums: tuple[int, int, int], seed: int, deferred: bool
) -> None:
    """Any answer comes at any later time: after the bookie failed, was replaced, or came back."""
    rng = random.Random(seed)
    core = writing(*quorums, deferred=deferred)
    quorum = core.quorum
    servers = {name: Server(name) for name in "abcdefgh"[: quorums[0] + 2]}
    published = 0

    def perform(actions: list[Action]) -> None:
        nonlocal published
        for action in actions:
            if isinstance(action, ChooseReplacements):
                spares = [name for name in servers if name not in action.ensemble]
                rng.shuffle(spares)
                few = rng.randrange(len(action.positions) + 1)
                perform(core.chosen(dict(zip(action.positions[:few], spares, strict=False))))
            elif isinstance(action, WriteMetadata):
                published += 1
                perform(core.written(published))
            elif isinstance(action, Send):
                bookie = servers[action.bookie_id]
                send(core, bookie, action.position, action.first_entry, core.lap)

    for _ in range(400):
        position = rng.randrange(quorums[0])
        name = core.ensemble[position]
        server = servers[rng.choice((name, *servers))]  # also a former member
        match rng.choice(
            ("push", "ack", "ack", "ask", "ask", "answer", "answer", "refuse", "crash", "return")
        ):
            case "push" if core.lap < 80 and core.state is State.OPEN:
                first = core.lap + 1
                core.push(rng.randint(1, 4))
                for p in core.live:
                    send(core, servers[core.ensemble[p]], p, first, core.lap)
            case "ack" if server.adds:
                if not deferred:  # each add was synced before its ack
                    server.durable |= server.volatile
                perform(core.acked(server.name, *server.adds.pop(0)))
            case "ask" if deferred:  # also when it is down: its answer may be late
                servers[name].forces.append(core.to_force(position))
            case "answer" if server.forces:
                server.durable |= server.volatile
                perform(core.forced(server.forces.pop(0)))
            case "refuse":  # it has lost nothing, and still answers
                perform(core.failed(name, down(name)))
            case "crash":
                servers[name].crash()
                perform(core.failed(name, down(name)))
            case "return":
                perform(core.returned(name))
        assert core.lac <= core.written_to <= core.lap
        for entry_id in range(core.lac + 1):
            fragment = core.metadata.fragment_of(entry_id)
            holders = [fragment.bookies[p] for p in quorum.write_set(entry_id)]
            count = sum(entry_id in servers[holder].durable for holder in holders)
            assert count >= quorum.ack_quorum, (entry_id, core.lac)
