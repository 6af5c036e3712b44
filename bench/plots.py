r"""Draw measurements: the latency of single messages by their rate.

    python -m bench.b4_single --rates 500,1000,2000,4000,6000,8000,10000 | tail -1 > owner.json
    python -m bench.b4_single --rates 500,1000,2000,4000,6000 --passed-on | tail -1 > other.json
    python -m bench.plots "asked the owner=owner.json" "asked another broker=other.json" \
        --out docs/pictures/single_messages.svg

A rate that was not reached is drawn hollow. Needs matplotlib (the extra `spark`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

SHOWN = {"p50_ms": "-", "p99_ms": "--"}
HELD_SHARE = 0.98
"""A rate counts as reached from this share on."""


def points(file: Path) -> list[tuple[float, dict[str, Any]]]:
    try:
        medians = json.loads(file.read_text())["medians"]
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"{file} is not the last line of bench.b4_single: {error!r}") from None
    return sorted((float(rate), found) for rate, found in medians.items())


def draw(series: dict[str, Path], out: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "octavo"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, (label, file) in enumerate(series.items()):
        found = points(file)
        rates = [rate for rate, _ in found]
        for key, line in SHOWN.items():
            times = [one[key] for _, one in found]
            name = f"{label}, {key.removesuffix('_ms')}"
            axes.plot(rates, times, line, color=f"C{number}", label=name)
            for (rate, one), time in zip(found, times, strict=True):
                held = one["held"] >= HELD_SHARE * rate
                fill = f"C{number}" if held else "none"
                axes.plot(rate, time, "o", color=f"C{number}", markerfacecolor=fill)
    axes.set_yscale("log")
    axes.set_xlabel("messages a second, each a call of its own")
    axes.set_ylabel("ms from when it was due to its answer")
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("series", nargs="+", metavar="LABEL=FILE")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/single_messages.svg"))
    options = parser.parse_args()
    series = {}
    for text in options.series:
        label, found, file = text.partition("=")
        if not found:
            parser.error(f"{text!r} is not LABEL=FILE")
        series[label] = Path(file)
    draw(series, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
