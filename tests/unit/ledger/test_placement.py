"""Which bookies are chosen: seeded, spread over racks and hosts, honest when there are too few."""

from __future__ import annotations

import random

import pytest

from octavo.ledger.bookies.placement import choose_ensemble, choose_replacements, no_choice
from octavo.ledger.errors import NotEnoughBookies
from octavo.metadata.bookies import BookieInfo


def bookies(racks: dict[str, str], hosts: dict[str, str] | None = None) -> dict[str, BookieInfo]:
    """Name → rack; each on a host of its own unless told."""
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
    """By chance alone bookies had 30 to 43 replicas of 200."""
    known = bookies(dict(zip("abcdef", racks, strict=True)))
    rng, has = random.Random(seed), dict.fromkeys(known, 0)
    placed: list[tuple[str, ...]] = []
    for _ in range(200):
        ensemble = choose_ensemble(known, 3, 3, rng=rng, open_ledgers=has)
        placed.append(ensemble)
        for bookie in ensemble:
            has[bookie] += 1
        if rng.random() < 0.3:  # one is closed
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
