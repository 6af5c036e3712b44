"""Choose the bookies of an ensemble. Pure: candidates and a seeded random generator in, ids out.

Preferences, strongest first: no bookies that failed lately; different racks, then hosts, in a write
set; the fewest open ledgers for the bookie's weight. They are not rules: a ledger on suspects is
better than none.

The weight is the free space divided by the median's, within bounds, as in BookKeeper
(`bookieMaxWeightMultipleForWeightBasedPlacement`): neither new nor full bookies get all ledgers.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from octavo.ledger.errors import NotEnoughBookies
from octavo.metadata.bookies import BookieInfo

RACK = "rack"
WEIGHT_MAX = 3.0
"""The lowest weight is 1 / `WEIGHT_MAX`; the median bookie has 1."""
_ALIKE = 1.25
"""Within this factor of the median the weight is 1."""
_NAMED_MAX = 10
_REASON_CHARACTERS_MAX = 300


def choose_ensemble(
    candidates: Mapping[str, BookieInfo],
    ensemble_size: int,
    write_quorum: int,
    *,
    rng: random.Random,
    suspects: Collection[str] = (),
    open_ledgers: Mapping[str, int] = MappingProxyType({}),
    weight_max: float = WEIGHT_MAX,
) -> tuple[str, ...]:
    """Choose the bookies of a new ledger.

    Raises `NotEnoughBookies`, which says why bookies are not usable.
    """
    usable = {b: info for b, info in candidates.items() if not info.read_only}
    if len(usable) < ensemble_size:
        why = no_choice(candidates, suspects=suspects)
        raise NotEnoughBookies("a new ensemble", ensemble_size, usable, why)
    ensemble: list[str | None] = [None] * ensemble_size
    weighed = weights(usable, weight_max)
    for position in range(ensemble_size):
        free = {b: info for b, info in usable.items() if b not in ensemble}
        ensemble[position] = _best(
            free, position, ensemble, usable, write_quorum, rng=rng, suspects=suspects,
            open_ledgers=open_ledgers, weighed=weighed,
        )  # fmt: skip
    return tuple(bookie for bookie in ensemble if bookie is not None)


def choose_replacements(
    candidates: Mapping[str, BookieInfo],
    ensemble: Sequence[str],
    positions: Collection[int],
    write_quorum: int,
    *,
    rng: random.Random,
    suspects: Collection[str] = (),
    open_ledgers: Mapping[str, int] = MappingProxyType({}),
    weight_max: float = WEIGHT_MAX,
) -> dict[int, str]:
    """Choose spares as far as there are any; never a suspect."""
    spares: dict[int, str] = {}
    weighed = weights({b: i for b, i in candidates.items() if not i.read_only}, weight_max)
    filled: list[str | None] = [None if p in positions else b for p, b in enumerate(ensemble)]
    for position in sorted(positions):
        free = {
            b: info
            for b, info in candidates.items()
            if not info.read_only and b not in ensemble and b not in filled and b not in suspects
        }
        if not free:
            break
        spares[position] = filled[position] = _best(
            free, position, filled, candidates, write_quorum, rng=rng, suspects=(),
            open_ledgers=open_ledgers, weighed=weighed,
        )  # fmt: skip
    return spares


def weights(candidates: Mapping[str, BookieInfo], weight_max: float) -> dict[str, float]:
    """A bookie without known free space, as Apache's, has weight 1."""
    free = {b: info.free_bytes for b, info in candidates.items() if info.free_bytes is not None}
    if weight_max <= 1 or not free:
        return dict.fromkeys(candidates, 1.0)
    median = statistics.median(free.values())

    def weight(found: int) -> float:
        if median <= found * _ALIKE and found <= median * _ALIKE:
            return 1.0
        if found <= 0 or median <= 0:
            return weight_max if found > 0 else 1 / weight_max
        return min(max(found / median, 1 / weight_max), weight_max)

    return {b: weight(free[b]) if b in free else 1.0 for b in candidates}


def no_choice(
    candidates: Mapping[str, BookieInfo],
    *,
    suspects: Collection[str] = (),
    failed: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Say why registered bookies are not chosen.

    `failed`: those that failed for this ledger, with their errors.
    """
    if not candidates and not failed:
        return "no bookie is registered"
    told = []
    for bookie_id in sorted({*candidates, *failed}):
        info = candidates.get(bookie_id)
        said = []
        if bookie_id in failed:
            said.append(f"failed for this ledger ({_short(failed[bookie_id])})")
        if info is None:
            said.append("is not registered")
        elif info.read_only:
            reason = info.read_only_because or "it does not say why"
            said.append(f"is read-only ({_short(reason)})")
        elif bookie_id in suspects and not said:
            said.append("failed lately: others are preferred for a while")
        if said:
            told.append(f"{bookie_id} {', and '.join(said)}")
    if len(told) > _NAMED_MAX:
        told = [*told[:_NAMED_MAX], f"and {len(told) - _NAMED_MAX} more"]
    return f"{len(candidates)} registered" + (": " + "; ".join(told) if told else "")


def _short(text: str) -> str:
    most = _REASON_CHARACTERS_MAX
    return text if len(text) <= most else text[: most - 1] + "…"


def _best(
    free: Mapping[str, BookieInfo],
    position: int,
    ensemble: Sequence[str | None],
    infos: Mapping[str, BookieInfo],
    write_quorum: int,
    *,
    rng: random.Random,
    suspects: Collection[str],
    open_ledgers: Mapping[str, int],
    weighed: Mapping[str, float],
) -> str:
    size = len(ensemble)
    distances = [d for d in range(-write_quorum + 1, write_quorum) if d % size]
    places: set[int] = {(position + d) % size for d in distances}
    near = [infos[b] for p in places if (b := ensemble[p]) is not None and b in infos]
    racks = [info.properties.get(RACK, "") for info in near]
    hosts = [info.host for info in near]

    def clashes(bookie_id: str) -> tuple[bool, int, int, float]:
        info = free[bookie_id]
        rack = info.properties.get(RACK, "")
        return (
            bookie_id in suspects,
            racks.count(rack) if rack else 0,
            hosts.count(info.host),
            (open_ledgers.get(bookie_id, 0) + rng.random()) / weighed[bookie_id],
        )

    # Sorted, so that the choice follows from the seed alone.
    return min(sorted(free), key=clashes)
