"""python -m tests.model [NAME …] [--max-states N] [--json] [--story]: search the models."""

from __future__ import annotations

import argparse
import json
import sys

from tests.model.explorer import Model
from tests.model.models import MODELS


def search(model: Model, states_max: int | None, story: bool) -> dict[str, object]:
    found = model.search(states_max)
    result: dict[str, object] = {
        "model": model.name,
        "about": model.about,
        "bounds": model.bounds,
        "states": found.states,
        "transitions": found.transitions,
        "depth": found.depth,
        "seconds": round(found.seconds, 1),
        "states_per_s": round(found.rate),
        "complete": found.complete,
        "failure": found.failure,
        "story": found.story,
    }
    defects = []
    for defect in model.defects:
        hunted = model.hunt(defect)
        ok = bool(hunted.failure and hunted.failure.startswith(defect.says))
        if story:
            print(f"\n{model.name}, planted: {defect.name}\n{hunted}\n", file=sys.stderr)
        defects.append(
            {
                "defect": defect.name,
                "found": ok,
                "violation": hunted.failure,
                "depth": len(hunted.story),
                "states": hunted.states,
                "seconds": round(hunted.seconds, 1),
            }
        )
    return {**result, "defects": defects}


def row(result: dict[str, object]) -> str:
    defects = result["defects"]
    assert isinstance(defects, list)
    steps = ", ".join(f"{d['depth']}{'' if d['found'] else ' MISSED'}" for d in defects)
    how = "all" if result["complete"] else "so many"
    return (
        f"{result['model']:<14}{result['states']:>12,} {how:<8}{result['depth']:>6}"
        f"{result['seconds']:>9}{result['states_per_s']:>10,}   "
        f"{sum(d['found'] for d in defects)} of {len(defects)} in {steps} steps"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--max-states", type=int, default=None, help="stop a search there")
    parser.add_argument("--json", action="store_true", help="one object a line instead of a table")
    parser.add_argument("--story", action="store_true", help="tell how each planted bug shows")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if not options.json:
        print("model               states visited    depth  seconds  states/s   planted bugs found")
    bad = 0
    for name in options.names or MODELS:
        result = search(MODELS[name], options.max_states, options.story)
        print(json.dumps(result) if options.json else row(result), flush=True)
        defects = result["defects"]
        assert isinstance(defects, list)
        if result["failure"] is not None:
            bad += 1
            for line in (f"{name}: {result['failure']}", *result["story"]):  # type: ignore[misc]
                print(f"    {line}", file=sys.stderr)
        bad += any(not defect["found"] for defect in defects)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
