"""The page at `/`: what this cluster is doing, at a glance. Plain HTML without external content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from octavo.broker.types import PartitionStats

STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .4rem}
p.sub{color:GrayText;margin:.2rem 0 0}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884}
th{font-weight:600;color:GrayText;font-size:.85rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.bad{color:#c0392b}pre{background:#8881;padding:.8rem;overflow-x:auto;border-radius:.3rem}
"""
"""Browsers accept only this style sheet (browsers.py)."""

ROWS_SHOWN_MAX = 500
"""Limit of topics and partitions that are shown; the page says how many more there are."""
_NAMED_MAX = 10
_UNKNOWN = "Not known: the metadata store has not answered since this broker started."


def page(
    figures: dict[str, Any],
    partitions: Sequence[PartitionStats],
    more: int,
    url: str,
    now_ms: int,
) -> str:
    """Return the whole page, which reloads itself every five seconds.

    `more`: how many partitions are not among `partitions`.
    """
    session = figures["metadata"]["session"]
    mark = "" if session == "connected" else ' class="bad"'
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta http-equiv="refresh" content="5">',
            f"<title>Octavo · {escape(figures['broker_id'])}</title><style>{STYLE}</style></head>",
            f"<body><h1>Octavo</h1><p class=sub>Broker {escape(figures['broker_id'])} at "
            f"{escape(url)} · metadata {escape(figures['metadata']['url'])}: "
            f"<span{mark}>{escape(session)}</span></p>",
            _stale_line(figures["stale"], now_ms),
            _bookies_line(figures["bookies"] or (), figures["bookies_down"] or ()),
            _brokers_line(figures["brokers_gone"]),
            _section(
                "Bookies",
                ("Bookie", "Address", "State", "Rack"),
                [
                    *(_bookie_row(one) for one in figures["bookies"] or ()),
                    *(_down_row(one, now_ms) for one in figures["bookies_down"] or ()),
                ],
                "No bookie is registered: nothing can be written. Start one with `octavo bookie`."
                if figures["bookies"] is not None
                else _UNKNOWN,
            ),
            _section(
                "Brokers",
                ("Broker", "URL", "State", "#Partitions"),
                [
                    *(_broker_row(one) for one in figures["brokers"]),
                    *(_gone_row(one, now_ms) for one in figures["brokers_gone"]),
                ],
                "No broker is registered.",
            ),
            _section(
                "Topics",
                ("Topic",),
                _topic_rows(figures["topics"] or []),
                "No topic yet." if figures["topics"] is not None else _UNKNOWN,
            ),
            _section(
                "Partitions served here",
                ("Partition", "#Messages", "#Next offset", "#Bytes", "#Ledgers", "Subscriptions"),
                [
                    *(_partition_row(stats) for stats in partitions),
                    *([(f"… and {more:,} more", "", "", "", "", "")] if more else []),
                ],
                "None.",
            ),
            "<h2>Try it</h2><pre>",
            escape(_examples(url)),
            '</pre><p class=sub><a href="/openapi.json">API</a> · <a href="/metrics">metrics</a> · '
            '<a href="/v1/cluster">cluster as JSON</a></p></body></html>\n',
        )
    )


def _stale_line(stale: dict[str, Any] | None, now_ms: int) -> str:
    if stale is None:
        return ""
    what = " and ".join((", ".join(stale["what"][:-1]), stale["what"][-1])).removeprefix(" and ")
    age_s = max(now_ms - stale["since"], 0) / 1000
    return (
        f"<p class=bad>The metadata store has not confirmed {escape(what)} for {age_s:.0f} s: "
        "this is what was last known.</p>"
    )


def _bookies_line(bookies: Sequence[dict[str, Any]], down: Sequence[dict[str, Any]]) -> str:
    """Return a warning if bookies are missing, or take no adds."""
    lines = []
    if down:
        lines.append(
            f"Down: {_names(down)}. Their entries have fewer copies until they are back, or until "
            "other bookies have copied them."
        )
    if read_only := [one for one in bookies if one["read_only"]]:
        lines.append(f"Read-only: {_names(read_only)}.")
    if bookies and len(read_only) == len(bookies):
        lines.append("No bookie takes adds: nothing can be published.")
    return "".join(f"<p class=bad>Warning. {line}</p>" for line in lines)


def _brokers_line(gone: Sequence[dict[str, Any]]) -> str:
    """Return a warning if brokers were live a while ago and are gone now."""
    if not gone:
        return ""
    return (
        f"<p class=bad>Warning. No longer registered: broker {_names(gone)}. Others serve the "
        "partitions; a broker that was stopped for good is shown for an hour.</p>"
    )


def _names(bookies: Sequence[dict[str, Any]]) -> str:
    more = len(bookies) - _NAMED_MAX
    names = ", ".join(escape(one["id"]) for one in bookies[:_NAMED_MAX])
    return f"{names} and {more} more" if more > 0 else names


def _examples(url: str) -> str:
    topic = f"{url}/v1/topics/public/hello"
    return (
        f"curl -X PUT {topic}\n"
        f"curl -d 'first message' {topic}/messages\n"
        f"curl '{topic}/messages?from=earliest'\n"
    )


def _bookie_row(info: dict[str, Any]) -> tuple[str, ...]:
    because = info["properties"].get("read_only_because", "")
    read_only = escape(f"read-only: {because}" if because else "read-only")
    return (
        escape(info["id"]),
        escape(f"{info['host']}:{info['port']}"),
        f"<span class=bad>{read_only}</span>" if info["read_only"] else "writable",
        escape(info["properties"].get("rack", "")),
    )


def _down_row(info: dict[str, Any], now_ms: int) -> tuple[str, ...]:
    since_s = max(0, now_ms - info["missing_since"]) / 1000
    where = "" if info["host"] is None else f"{info['host']}:{info['port']}"
    state = f"<span class=bad>down, missed for {since_s:.0f} s</span>"
    return (escape(info["id"]), escape(where), state, "")


def _gone_row(info: dict[str, Any], now_ms: int) -> tuple[str, ...]:
    since_s = max(0, now_ms - info["missing_since"]) / 1000
    state = f"<span class=bad>gone, missed for {since_s:.0f} s</span>"
    return escape(info["id"]), escape(info["url"]), state, ""


def _broker_row(info: dict[str, Any]) -> tuple[str, ...]:
    return (
        escape(info["id"]) + (" (this one)" if info["self"] else ""),
        _link(info["url"]),
        "<span class=bad>draining</span>" if info["draining"] else "",
        f"{info['partitions']:,}",
    )


def _topic_rows(names: list[str]) -> list[tuple[str]]:
    rows = [(_link(f"/v1/topics/{name}", name),) for name in names[:ROWS_SHOWN_MAX]]
    if len(names) > ROWS_SHOWN_MAX:
        rows.append((f"… and {len(names) - ROWS_SHOWN_MAX:,} more",))
    return rows


def _partition_row(stats: PartitionStats) -> tuple[str, ...]:
    backlogs = ", ".join(
        f"{escape(name)}: {figures.backlog:,} behind"
        for name, figures in stats.subscriptions.items()
    )
    return (
        escape(str(stats.name)),
        f"{stats.next_offset - stats.earliest_offset:,}",
        f"{stats.next_offset:,}",
        f"{stats.stored_bytes:,}",
        str(len(stats.ledgers)),
        backlogs,
    )


def _link(target: str, text: str | None = None) -> str:
    return f'<a href="{escape(target)}">{escape(text or target)}</a>'


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> str:
    """Return a table; a column whose head begins with `#` has numbers."""
    rows = list(rows)
    if not rows:
        return f"<h2>{title}</h2><p class=sub>{escape(nothing)}</p>"
    classes = [" class=n" if head.startswith("#") else "" for head in heads]
    top = "".join(
        f"<th{kind}>{head.lstrip('#')}</th>" for head, kind in zip(heads, classes, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, classes, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<h2>{title}</h2><table><tr>{top}</tr>{body}</table>"
