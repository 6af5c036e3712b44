"""The choice of bookies, and quorum arithmetic."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.ledger.bookies.placement import (
    WEIGHT_MAX,
    choose_ensemble,
    choose_replacements,
    no_choice,
    weights,
)
from octavo.ledger.errors import NotEnoughBookies
from octavo.ledger.quorum import Acks, Quorum, risk_of
from octavo.metadata.bookies import BookieInfo


def bookies(racks: dict[str, str], hosts: dict[str, str] | None = None) -> dict[str, BookieInfo]:
    """Name → rack; each on its own host unless told."""
    hosts = hosts or {}
    return {
        name: BookieInfo(
            name, hosts.get(name, name), 3181, properties={"rack": rack} if rack else {}
        )
        for name, rack in racks.items()
    }


def test_the_seed_alone_decides() -> None:
    known = bookies(dict.fromkeys("abcdefg", ""))
    backwards = dict(reversed(known.items()))
    chosen = [choose_ensemble(known, 3, 3, rng=random.Random(seed)) for seed in range(50)]
    again = [choose_ensemble(backwards, 3, 3, rng=random.Random(seed)) for seed in range(50)]
    assert chosen == again
    assert len(set(chosen)) > 20
    assert all(len(set(ensemble)) == 3 for ensemble in chosen)


def test_every_write_set_spans_two_racks_where_possible() -> None:
    """No. 74: for E > Qw too, every window of Qw neighbours."""
    known = bookies({name: f"/r{i % 2}" for i, name in enumerate("abcdefgh")})
    for seed in range(100):
        ensemble = choose_ensemble(known, 4, 2, rng=random.Random(seed))
        for start in range(4):
            window = [ensemble[(start + k) % 4] for k in range(2)]
            assert len({known[b].properties["rack"] for b in window}) == 2


def test_hosts_are_distinct_where_possible_and_shared_where_not() -> None:
    known = bookies(dict.fromkeys("abcd", ""), {"a": "h1", "b": "h1", "c": "h2", "d": "h3"})
    for seed in range(50):
        ensemble = choose_ensemble(known, 3, 3, rng=random.Random(seed))
        assert len({known[b].host for b in ensemble}) == 3
    one_machine = bookies(dict.fromkeys("abc", ""), dict.fromkeys("abc", "localhost"))
    assert set(choose_ensemble(one_machine, 3, 3, rng=random.Random(1))) == set("abc")


def test_suspects_and_read_only_bookies() -> None:
    known = bookies(dict.fromkeys("abcd", ""))
    for seed in range(30):
        ensemble = choose_ensemble(known, 3, 3, rng=random.Random(seed), suspects={"a"})
        assert "a" not in ensemble
    assert "a" in choose_ensemble(known, 4, 3, rng=random.Random(1), suspects={"a"})
    known["d"] = BookieInfo("d", "d", 3181, read_only=True)
    with pytest.raises(NotEnoughBookies, match=r"4 bookies needed, 3 usable \(a, b, c\)") as caught:
        choose_ensemble(known, 4, 3, rng=random.Random(1))
    assert (caught.value.needed, caught.value.up) == (4, ("a", "b", "c"))


def test_replacements_keep_out_members_suspects_and_read_only() -> None:
    known = bookies(dict.fromkeys("abcdef", ""))
    known["f"] = BookieInfo("f", "f", 3181, read_only=True)
    ensemble = ("a", "b", "c")
    rng = random.Random(1)
    spares = choose_replacements(known, ensemble, (0, 2), 3, rng=rng, suspects={"b"})
    assert set(spares) == {0, 2}
    assert set(spares.values()) == {"d", "e"}
    assert choose_replacements(known, ensemble, (0, 2), 3, rng=rng, suspects={"d"}) == {0: "e"}
    assert choose_replacements(known, ensemble, (1,), 3, rng=rng, suspects={"d", "e"}) == {}


def test_a_replacement_stands_in_a_rack_that_its_neighbours_do_not() -> None:
    known = bookies({"a": "/r1", "b": "/r2", "c": "/r3", "d": "/r1", "e": "/r2", "f": "/r3"})
    for seed in range(20):
        spares = choose_replacements(known, ("a", "b", "c"), (0,), 3, rng=random.Random(seed))
        assert spares == {0: "d"}


@pytest.mark.parametrize("racks", [("",) * 6, ("/r1", "/r2", "/r3") * 2])
@pytest.mark.parametrize("seed", range(5))
def test_open_ledgers_are_even(racks: tuple[str, ...], seed: int) -> None:
    """At random, bookies had 30 to 43 replicas of 200."""
    known = bookies(dict(zip("abcdef", racks, strict=True)))
    rng, has = random.Random(seed), dict.fromkeys(known, 0)
    placed: list[tuple[str, ...]] = []
    for _ in range(200):
        ensemble = choose_ensemble(known, 3, 3, rng=rng, open_ledgers=has)
        placed.append(ensemble)
        for bookie in ensemble:
            has[bookie] += 1
        if rng.random() < 0.3:
            for bookie in placed.pop(rng.randrange(len(placed))):
                has[bookie] -= 1
        assert max(has.values()) - min(has.values()) <= 4
        racks_of = {known[bookie].properties.get("rack", bookie) for bookie in ensemble}
        assert len(racks_of) == 3, "racks come first"


def test_an_idle_bookie_does_not_come_before_racks_hosts_and_health() -> None:
    known = bookies({"a": "/r1", "b": "/r2", "c": "/r1", "d": "/r2"}, {"a": "h", "c": "h"})
    has = {"a": 9, "b": 9, "c": 0, "d": 9}
    for seed in range(20):
        rng = random.Random(seed)
        assert "c" not in choose_ensemble(
            known, 3, 3, rng=rng, suspects={"c"}, open_ledgers={**has, "a": 50}
        )
        pair = choose_ensemble(known, 2, 2, rng=rng, open_ledgers=has)
        assert len({known[bookie].properties["rack"] for bookie in pair}) == 2
        assert "c" in pair


def test_a_spare_is_the_one_with_the_fewest_ledgers() -> None:
    known = bookies(dict.fromkeys("abcdef", ""))
    for seed in range(20):
        spares = choose_replacements(
            known, ("a", "b", "c"), (1,), 3, rng=random.Random(seed),
            open_ledgers={"d": 2, "e": 1, "f": 2},
        )  # fmt: skip
        assert spares == {1: "e"}


# Free space

GIB = 2**30


def with_free(
    free: Mapping[str, int | None], racks: Mapping[str, str] | None = None
) -> dict[str, BookieInfo]:
    """Name → free bytes; None is unknown."""
    known = bookies({name: (racks or {}).get(name, "") for name in free})
    return {
        name: info
        if free[name] is None
        else replace(info, properties={**info.properties, "free_bytes": str(free[name])})
        for name, info in known.items()
    }


def placed(known: dict[str, BookieInfo], ledgers: int, seed: int) -> Counter[str]:
    """Return the number of open ledgers on each bookie, where a third is closed now and then."""
    rng, has = random.Random(seed), Counter(dict.fromkeys(known, 0))
    total: Counter[str] = Counter()
    under_way: list[tuple[str, ...]] = []
    for _ in range(ledgers):
        ensemble = choose_ensemble(known, 2, 2, rng=rng, open_ledgers=has)
        under_way.append(ensemble)
        has.update(ensemble)
        total.update(ensemble)
        if rng.random() < 0.9:
            has.subtract(under_way.pop(rng.randrange(len(under_way))))
    return total


@pytest.mark.parametrize("seed", range(5))
def test_emptier_bookies_get_more_and_full_ones_some(seed: int) -> None:
    """A new bookie among full ones got as few new ledgers as they did, so they turned read-only."""
    free = {
        "a": 100 * GIB,
        "b": 100 * GIB,
        "c": 100 * GIB,
        "d": 100 * GIB,
        "full": GIB,
        "new": 9000 * GIB,
    }
    total = placed(with_free(free), 600, seed)
    middle = sum(total[name] for name in "abcd") / 4
    assert 1.5 * middle < total["new"] < (WEIGHT_MAX + 1) * middle
    assert middle / (2 * WEIGHT_MAX) < total["full"] < 0.7 * middle


@pytest.mark.parametrize("seed", range(3))
def test_short_lived_clients_do_not_all_take_the_emptiest(seed: int) -> None:
    """Each client knows only its own open ledgers, and most have none."""
    known = with_free({"a": GIB, "b": GIB, "c": GIB, "d": GIB, "new": 50 * GIB})
    rng, total = random.Random(seed), Counter[str]()
    for _ in range(500):
        total.update(choose_ensemble(known, 2, 2, rng=rng))
    assert 300 < total["new"] < 500, "it is preferred, and not in every ensemble"
    assert min(total.values()) > 60, "each of the others is chosen"


def test_free_space_counts_for_nothing_with_a_weight_of_one() -> None:
    free = {"a": 1, "b": 10**12, "c": 10**6, "d": None}
    known, alike = with_free(free), bookies(dict.fromkeys(free, ""))
    for seed in range(50):
        found = choose_ensemble(known, 2, 2, rng=random.Random(seed), weight_max=1)
        assert found == choose_ensemble(alike, 2, 2, rng=random.Random(seed))


def test_space_does_not_come_before_racks_and_health() -> None:
    racks = {"a": "/r1", "b": "/r2", "new": "/r1", "newer": "/r1"}
    known = with_free({"a": GIB, "b": GIB, "new": 90 * GIB, "newer": 90 * GIB}, racks)
    for seed in range(30):
        pair = choose_ensemble(known, 2, 2, rng=random.Random(seed), suspects={"newer"})
        assert "b" in pair, "the other rack"
        assert "newer" not in pair


def test_an_emptier_spare_is_chosen_more_often() -> None:
    known = with_free({"a": GIB, "b": GIB, "c": GIB, "full": GIB // 50, "new": 20 * GIB})
    spares = Counter(
        choose_replacements(known, ("a", "b", "c"), (0,), 3, rng=random.Random(seed))[0]
        for seed in range(200)
    )
    assert spares["new"] > 150
    assert spares["full"] > 0


@given(
    st.dictionaries(
        st.text("abcdefgh", min_size=1, max_size=3),
        st.none() | st.integers(0, 2**63 - 1),
        min_size=1,
        max_size=8,
    ),
    st.floats(1.0, 100.0),
)
def test_weights_are_bounded_and_follow_free_space(
    free: dict[str, int | None], weight_max: float
) -> None:
    found = weights(with_free(free), weight_max)
    assert found.keys() == free.keys()
    for name, weight in found.items():
        assert 1 / weight_max <= weight <= weight_max
        if free[name] is None:
            assert weight == 1
        for other, bytes_free in free.items():
            mine = free[name]
            if mine is not None and bytes_free is not None and mine <= bytes_free:
                assert weight <= found[other], "who has more space has no smaller weight"
                if mine == bytes_free:
                    assert weight == found[other]


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        ((100, 100, 100), (1, 1, 1)),
        ((80, 100, 125), (1, 1, 1)),
        ((79, 100, 126), (0.79, 1, 1.26)),
        ((34, 100, 299), (0.34, 1, 2.99)),
        ((1, 100, 300), (1 / 3, 1, 3)),
        ((0, 100, 10_000), (1 / 3, 1, 3)),
        ((0, 0, 5), (1, 1, 3)),
        ((0, 0, 0), (1, 1, 1)),
        ((None, None, 5), (1, 1, 1)),
    ],
)
def test_weights_by_example(free: tuple[int | None, ...], expected: tuple[float, ...]) -> None:
    known = with_free(dict(zip("abc", free, strict=True)))
    assert list(weights(known, 3).values()) == pytest.approx(list(expected))


@pytest.mark.parametrize("said", ["", "-1", "many", "1.5", "9" * 40, "٣"])
def test_free_space_that_is_no_number_is_not_told(said: str) -> None:
    assert BookieInfo("a", "a", 1, properties={"free_bytes": said}).free_bytes is None


def test_too_few_names_each_bookie_that_is_no_choice_and_why() -> None:
    known = bookies(dict.fromkeys("abcde", ""))
    known["a"] = BookieInfo("a", "a", 3181, read_only=True)
    full = "disk full: /data/ledgers has 7 bytes free, fewer than disk_free_bytes_min (9)"
    known["b"] = BookieInfo("b", "b", 3181, True, {"read_only_because": full})
    with pytest.raises(NotEnoughBookies) as caught:
        choose_ensemble(known, 4, 3, rng=random.Random(1), suspects={"c"})
    said = str(caught.value)
    assert "4 bookies needed, 3 usable (c, d, e)" in said
    assert "5 registered" in said
    assert "a is read-only (it does not say why)" in said
    assert f"b is read-only ({full})" in said
    assert "c failed lately: others are preferred for a while" in said
    with pytest.raises(NotEnoughBookies, match="no bookie is registered"):
        choose_ensemble({}, 3, 3, rng=random.Random(1))


def test_what_is_told_of_bookies_that_are_no_choice_is_bounded() -> None:
    full = {"read_only_because": "x" * 5000}
    known = {f"b{n:03}": BookieInfo(f"b{n:03}", "h", 1, True, full) for n in range(300)}
    told = no_choice(known)
    assert len(told) < 5000, len(told)
    assert "b000 is read-only" in told
    assert "and 290 more" in told


def test_a_bookie_that_failed_for_a_ledger_is_told_with_its_error() -> None:
    known = bookies(dict.fromkeys("ab", ""))
    told = no_choice(known, suspects={"a", "z"}, failed={"a": "no answer", "z": "refused"})
    assert "2 registered" in told
    assert "a failed for this ledger (no answer)" in told
    assert "z failed for this ledger (refused), and is not registered" in told
    assert "b" not in told.partition(":")[2].replace("not be", "").split()


# Quorum arithmetic against a slow reference that enumerates ack sets, for all small shapes.
SHAPES = [
    Quorum(e, qw, qa) for e in range(1, 7) for qw in range(1, e + 1) for qa in range(1, qw + 1)
]


def subsets(size: int) -> Iterator[set[int]]:
    for count in range(size + 1):
        yield from map(set, itertools.combinations(range(size), count))


def slow_write_set(quorum: Quorum, entry_id: int) -> set[int]:
    return {(entry_id + k) % quorum.ensemble_size for k in range(quorum.write_quorum)}


def slow_ack_sets(quorum: Quorum, entry_id: int) -> list[set[int]]:
    """Yield every set of bookies whose acks alone confirm the entry."""
    members = sorted(slow_write_set(quorum, entry_id))
    return [set(chosen) for chosen in itertools.combinations(members, quorum.ack_quorum)]


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_write_sets(quorum: Quorum) -> None:
    for entry_id in range(3 * quorum.ensemble_size):
        expected = slow_write_set(quorum, entry_id)
        assert set(quorum.write_set(entry_id)) == expected
        for position in range(quorum.ensemble_size):
            assert quorum.holds(position, entry_id) == (position in expected)
            following = next(
                e for e in itertools.count(entry_id + 1) if position in slow_write_set(quorum, e)
            )
            assert quorum.next_held(position, entry_id) == following


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_fence_coverage_is_when_no_ack_set_is_left_unfenced(quorum: Quorum) -> None:
    """P26: over every window, not by a count of answers (BookKeeper PR #2281)."""
    for answered in subsets(quorum.ensemble_size):
        unfenced_ack_set = any(
            not acks & answered
            for entry_id in range(quorum.ensemble_size)
            for acks in slow_ack_sets(quorum, entry_id)
        )
        assert quorum.covers(answered) == (not unfenced_ack_set)


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_writable_is_when_every_write_set_has_an_ack_set(quorum: Quorum) -> None:
    for live in subsets(quorum.ensemble_size):
        possible = all(
            any(acks <= live for acks in slow_ack_sets(quorum, entry_id))
            for entry_id in range(quorum.ensemble_size)
        )
        assert quorum.writable(live) == possible


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_denials_are_the_fewest_that_meet_every_ack_set(quorum: Quorum) -> None:
    """P27: this many denials prove that an entry was never acked, and one fewer does not."""
    members = sorted(slow_write_set(quorum, 0))

    def prove(count: int) -> bool:
        return all(
            set(denying) & acks
            for denying in itertools.combinations(members, count)
            for acks in slow_ack_sets(quorum, 0)
        )

    assert prove(quorum.denials)
    assert not prove(quorum.denials - 1)


def slow_confirmed(quorum: Quorum, stored: set[tuple[int, int]], last_pushed: int) -> int:
    def gapless(position: int, entry_id: int) -> bool:
        return all(
            (position, e) in stored
            for e in range(entry_id + 1)
            if position in slow_write_set(quorum, e)
        )

    confirmed = -1
    while confirmed < last_pushed:
        entry_id = confirmed + 1
        count = sum(gapless(p, entry_id) for p in slow_write_set(quorum, entry_id))
        if count < quorum.ack_quorum:
            break
        confirmed = entry_id
    return confirmed


@pytest.mark.parametrize("quorum", [q for q in SHAPES if q.ensemble_size <= 3], ids=str)
def test_acks_in_every_order(quorum: Quorum) -> None:
    last = 1 if quorum.write_quorum == 3 else 2
    singles = [(p, e) for e in range(last + 1) for p in slow_write_set(quorum, e)]
    for order in itertools.permutations(singles):
        acks, stored, confirmed = Acks(quorum, -1), set[tuple[int, int]](), -1
        for position, entry_id in order:
            acks.add(position, entry_id, entry_id)
            stored.add((position, entry_id))
            confirmed = acks.confirmed(confirmed, last)
            assert confirmed == slow_confirmed(quorum, stored, last), order
        assert confirmed == last


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_acks_of_random_ranges_with_repeats(quorum: Quorum) -> None:
    rng = random.Random(str(quorum))
    for _ in range(20):
        acks, stored, confirmed, last = Acks(quorum, -1), set[tuple[int, int]](), -1, 11
        for _ in range(60):
            position = rng.randrange(quorum.ensemble_size)
            first = rng.randrange(last + 1)
            end = min(last, first + rng.randrange(4))
            acks.add(position, first, end)
            stored |= {(position, e) for e in range(first, end + 1)}
            confirmed = acks.confirmed(confirmed, last)
            assert confirmed == slow_confirmed(quorum, stored, last)


def test_a_bookie_that_joins_has_acked_nothing() -> None:
    acks = Acks(Quorum(3, 3, 2), -1)
    acks.add(0, 0, 9)
    acks.add(1, 0, 9)
    acks.add(1, 12, 12)
    acks.join(1, 4)
    assert acks.confirmed(4, 9) == 4
    acks.add(1, 5, 11)
    assert acks.acked_to == [9, 11, -1], "what came early to the replaced bookie is forgotten"
    assert acks.confirmed(4, 9) == 9


@pytest.mark.parametrize(
    ("write_quorum", "ack_quorum", "risky"),
    [(3, 1, True), (2, 1, True), (1, 1, False), (3, 2, False), (2, 2, False), (3, 3, False)],
)
def test_an_ack_quorum_of_one_beside_more_copies_is_a_risk(
    write_quorum: int, ack_quorum: int, risky: bool
) -> None:
    """`Qa 1 of Qw 3` was accepted silently."""
    said = risk_of(write_quorum, ack_quorum)
    assert bool(said) == risky
    assert not risky or f"write_quorum {write_quorum}" in said
