from octavo.spark.process_cache import ProcessCache
from tests.sim.run import run_seed


def test_a_value_is_kept_by_its_key() -> None:
    cache = ProcessCache[tuple[str, int], str](2)
    cache.put(("a", 1), "x")
    assert cache.get(("a", 1)) == "x"
    assert cache.get(("b", 1)) is cache.get(("a", 2)) is None
    cache.put(("a", 2), "y")
    cache.put(("a", 1), "z")
    cache.put(("b", 1), "newest")
    assert cache.get(("a", 2)) is None, "the oldest makes room"
    assert (cache.get(("a", 1)), cache.get(("b", 1))) == ("z", "newest")
    cache.drop(("a", 1))
    assert cache.get(("a", 1)) is None


def test_a_simulated_process_begins_with_none() -> None:
    """Seed 311 failed only after other seeds: it used a proof that their cluster had made."""
    cache = ProcessCache[str, int](2)
    cache.put("of another seed", 1)
    run_seed(1, profile="ledger")
    assert cache.get("of another seed") is None
