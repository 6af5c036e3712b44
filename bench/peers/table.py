"""Make the output: a line for each run, the table, the document's figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.peers.contract import LEDGER_BYTES, RATES, SYSTEMS, WORKLOADS

Runs = Sequence[Mapping[str, Any]]
"""`system`, `workload`, and figures, or the reason in `failed`."""
_HEAD = ("workload", "system", "median", "rounds", "servers, µs a message")
_LATENCIES = ("p50_ms", "p99_ms", "p999_ms")
_MEDIANS = ("per_s", "held", *_LATENCIES, "max_ms", "client_us", "server_us", "first_ms")


def line(run: Mapping[str, Any]) -> str:
    begin = f"{run['workload']:<12} {run['system']:<14}"
    if "failed" in run:
        return f"{begin} FAILED: {run['failed']}"
    if run["workload"] in RATES:
        p50, p99, p999 = (run[name] for name in _LATENCIES)
        figures = f"p50 {p50:>8} p99 {p99:>8} p99.9 {p999:>8} ms, {run['held']:,}/s held"
    else:
        figures = f"{run['per_s']:>9,}/s"
    if "client_us" in run:
        figures += f"  client {run['client_us']} µs a message"
    if "first_ms" in run:
        figures += f"  first after {run['first_ms']} ms"
    return f"{begin} {figures}  servers {run['server_us']} µs a message"


def rows(runs: Runs) -> list[str]:
    lines = [_row(_HEAD), "|" + "---|" * len(_HEAD)]
    for workload in WORKLOADS:
        for system in SYSTEMS.values():
            of = [
                one for one in runs if (one["workload"], one["system"]) == (workload, system.name)
            ]
            done = [one for one in of if "failed" not in one]
            if not of:
                continue
            shown = "; ".join("failed" if "failed" in one else _short(one) for one in of)
            median = _short({"workload": workload, **medians(done)}) if done else "–"
            used = f"{statistics.median(one['server_us'] for one in done):g}" if done else "–"
            lines.append(_row((workload, system.name, median, shown, used)))
    return lines


def listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in sorted(values.items()))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _short(run: Mapping[str, Any]) -> str:
    size = LEDGER_BYTES.get(run["workload"], 0)
    if run["workload"] not in RATES:
        mb = f" ({run['per_s'] * size / 1e6:,.0f} MB/s)" if size > 1000 else ""
        return f"{run['per_s']:,.0f}/s{mb}"
    short = " / ".join(f"{run[name]:.2f}" for name in _LATENCIES) + " ms"
    # A rate slightly below is due to the wait for the last answer.
    behind = run["held"] < 0.98 * RATES[run["workload"]]
    return short + (f" (held {run['held']:,.0f}/s)" if behind else "")


def medians(runs: Runs) -> dict[str, float]:
    return {
        name: round(statistics.median(one[name] for one in runs), 2)
        for name in _MEDIANS
        if runs and all(name in one for one in runs)
    }


def all_medians(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for workload in WORKLOADS:
        for name in SYSTEMS:
            done = [
                one
                for one in runs
                if (one["workload"], one["system"]) == (workload, name) and "failed" not in one
            ]
            if done:
                found.setdefault(workload, {})[name] = medians(done)
    return found
