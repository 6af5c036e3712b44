"""The HTML page of `report`: tables, and pictures by matplotlib as SVG, in a single file. Pure."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } tr:nth-child(even) { background: #f5f5f5; }
svg { max-width: 100%; height: auto; }
"""
_TOPICS_DRAWN_MAX = 10
_REST = "all others"


def page(whole: dict[str, Any]) -> str:
    made = datetime.fromtimestamp(whole["made_ms"] / 1000, UTC).isoformat(" ", "seconds")
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Octavo: topics</title>",
        f"<style>{_STYLE}</style><h1>Topics</h1>",
        f"<p>{whole['messages']:,} messages at {made}.</p>",
        "<h2>Stored</h2>",
        _stored(whole["stored"]),
    ]
    if whole["volume"]:
        parts += ["<h2>Volume by day</h2>", _volume(whole["volume"])]
    if whole["sizes"]:
        parts += ["<h2>Sizes of messages</h2>", _sizes(whole["sizes"])]
    for topic in sorted({row["topic"] for row in whole["hot_keys"]}):
        keys = [row for row in whole["hot_keys"] if row["topic"] == topic]
        parts += [f"<h2>Hot keys of {html.escape(topic)}</h2>", _keys(keys)]
    return "\n".join(parts) + "</html>\n"


def _stored(rows: Iterable[dict[str, Any]]) -> str:
    names = [
        *("topic", "partitions", "ledgers", "bytes", "bytes_all_copies"),
        *("retention_ms", "retention_bytes", "expired_ledgers", "expired_bytes"),
    ]
    return _table(names, [[row[name] for name in names] for row in rows])


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def by_topic(
    rows: Iterable[dict[str, Any]], at: str, value: str
) -> tuple[list[Any], dict[str, list[int]]]:
    every = list(rows)
    totals: dict[str, int] = {}
    for row in every:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row[value]
    shown = sorted(totals, key=lambda topic: (-totals[topic], topic))[:_TOPICS_DRAWN_MAX]
    places = sorted({row[at] for row in every})
    names = shown + [_REST] * (len(totals) > len(shown))
    found = {name: [0] * len(places) for name in names}
    for row in every:
        name = row["topic"] if row["topic"] in shown else _REST
        found[name][places.index(row[at])] += row[value]
    return places, found


def _volume(rows: list[dict[str, Any]]) -> str:
    messages = _bars(*by_topic(rows, "day", "messages"), "messages")
    return messages + _bars(*by_topic(rows, "day", "bytes"), "bytes")


def _sizes(rows: list[dict[str, Any]]) -> str:
    places, found = by_topic(rows, "bytes_min", "messages")
    return _bars([f"from {_binary(place)}" for place in places], found, "messages")


def _binary(count: int) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count // size} {unit}"
    return f"{count} B"


def _bars(places: list[Any], found: dict[str, list[int]], unit: str) -> str:
    figure, axes = _figure(6.0)
    below = [0] * len(places)
    texts = [str(place) for place in places]
    for name, heights in found.items():
        axes.bar(texts, heights, bottom=below, label=_literal(name))
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_ylabel(unit)
    axes.tick_params(axis="x", rotation=60 if len(texts) > 8 else 0)
    if len(texts) > 40:
        axes.set_xticks(range(0, len(texts), len(texts) // 20))
    axes.legend(frameon=False)
    return _svg(figure)


def _keys(rows: list[dict[str, Any]]) -> str:
    figure, axes = _figure(max(2.0, 0.35 * len(rows)))
    names = [_literal(row["key"][:40]) for row in rows]
    places = range(len(rows), 0, -1)
    axes.barh(list(places), [row["messages"] for row in rows], tick_label=names)
    axes.set_xlabel("messages")
    names_of = ("key", "messages", "bytes")
    return _svg(figure) + _table(names_of, [[row[name] for name in names_of] for row in rows])


def _literal(text: str) -> str:
    """Escape for matplotlib, which takes $…$ as formulas and hides labels that begin with `_`."""
    escaped = text.replace("$", r"\$")
    return "\u200b" + escaped if escaped.startswith("_") else escaped


def _figure(height: float) -> tuple[Any, Any]:
    # Avoid pyplot: it keeps every figure, and looks for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    made = text.getvalue()
    return made[made.index("<svg") :]
