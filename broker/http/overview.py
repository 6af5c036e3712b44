"""The cluster as this broker last saw it, kept in memory by watches.

Needed in an emergency, so it answers within `ANSWER_WITHIN_S` even if the metadata store is dead,
and says since when it may be outdated. The page at `/` is plain HTML.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple, TypeVar

from octavo.broker.broker import Broker
from octavo.broker.cluster.watched_record import WatchedRecord
from octavo.broker.errors import NamespaceNotFound
from octavo.broker.types import PartitionStats
from octavo.metadata.bookies import BookieInfo, BookieRegistry
from octavo.metadata.paths import join
from octavo.metadata.store import (
    MetadataError,
    MetadataStore,
    MetadataUnavailable,
    SessionState,
    Watch,
)
from octavo.metadata.topics import NAMESPACES_ROOT, TOPICS_ROOT

Value = TypeVar("Value")
ANSWER_WITHIN_S = 0.08
OUT_OF_REACH_WAIT_S = 0.5


class Down(NamedTuple):
    """A bookie that is not registered, but has a cookie or was seen."""

    bookie_id: str
    info: BookieInfo | None
    since_ms: int
    """When this broker first missed the bookie, by the wall clock."""


class _Bookies(NamedTuple):
    registered: dict[str, BookieInfo]
    down: list[Down]


class Seen(NamedTuple):
    bookies: dict[str, BookieInfo] | None
    """None: not read since this broker started."""
    down: list[Down] | None
    topics: list[str] | None
    stale: list[str]
    """Which of `bookies`, `brokers` and `topics` may be out of date."""
    stale_since_ms: int
    """When figures became stale, by the wall clock; 0 if nothing is stale."""


class Overview:
    def __init__(
        self,
        store: MetadataStore,
        registry: BookieRegistry,
        broker: Broker,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._registry = registry
        self._broker = broker
        self._clock = clock
        self._lost_ms = 0
        self._alarm_ms = {"bookies": 0, "topics": 0}
        self._infos: dict[str, BookieInfo] = {}
        self._missing_ms: dict[str, int] = {}
        self._watches: list[Watch] = []
        self._watched: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._bookies = WatchedRecord(self._read_bookies, self._spawn)
        self._topics = WatchedRecord(self._read_topics, self._spawn)
        self._store.on_session(lambda _: self._note_contact())
        self._watches = [
            self._registry.watch(self._bookies_changed),
            self._registry.watch_cookies(self._bookies_changed),
            self._store.watch_children(NAMESPACES_ROOT, self._topics_changed),
        ]
        for one in (self._bookies, self._topics):
            self._spawn(self._soon(one))

    async def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def out_of_reach_since_ms(self) -> int:
        self._note_contact()
        return self._lost_ms

    async def look(self) -> Seen:
        await asyncio.gather(self._soon(self._bookies), self._soon(self._topics))
        since_ms = self.out_of_reach_since_ms
        if since_ms:
            stale = ["bookies", "brokers", "topics"]
        else:
            by_name = {"bookies": self._bookies.stale, "topics": self._topics.stale}
            stale = [name for name, is_stale in by_name.items() if is_stale]
            since_ms = min((self._alarm_ms[name] for name in stale), default=0)
        found = self._bookies.last
        registered, down = (None, None) if found is None else found
        return Seen(registered, down, self._topics.last, stale, since_ms)

    async def bookies_of_the_cluster(self) -> set[str]:
        return await self._registry.known()

    async def prompt(self, asked: Awaitable[Value]) -> Value:
        """Await the store; raise `MetadataUnavailable` soon when it is unreachable."""
        since_ms = self.out_of_reach_since_ms
        if not since_ms:
            return await asked
        try:
            async with asyncio.timeout(OUT_OF_REACH_WAIT_S):
                return await asked
        except TimeoutError:
            for_s = max(self._clock() - since_ms, 0) / 1000
            raise MetadataUnavailable(
                f"the metadata store at {self._store.url} is out of reach for {for_s:.1f} s; "
                "GET /v1/cluster has what was last known"
            ) from None

    async def _soon(self, one: WatchedRecord[Any]) -> None:
        with contextlib.suppress(TimeoutError, MetadataError):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await one.newest()

    async def _read_bookies(self) -> _Bookies:
        registered = await self._registry.available()
        known = await self._registry.known() | registered.keys()
        infos = self._infos | registered
        self._infos = {one: info for one, info in infos.items() if one in known}
        now_ms, before = self._clock(), self._missing_ms
        missing = sorted(known - registered.keys())
        self._missing_ms = {one: before.get(one, now_ms) for one in missing}
        down = [Down(one, self._infos.get(one), since) for one, since in self._missing_ms.items()]
        return _Bookies(registered, down)

    def _bookies_changed(self) -> None:
        self._alarm("bookies", self._bookies)

    async def _read_topics(self) -> list[str]:
        found = []
        for namespace in await self._broker.topics.list_namespaces():
            if namespace not in self._watched:
                self._watched.add(namespace)
                path = join(TOPICS_ROOT, namespace)
                self._watches.append(self._store.watch_children(path, self._topics_changed))
            with contextlib.suppress(NamespaceNotFound):
                found += [
                    f"{namespace}/{one}" for one in await self._broker.topics.names_in(namespace)
                ]
        return found

    def _topics_changed(self) -> None:
        self._alarm("topics", self._topics)

    def _alarm(self, name: str, one: WatchedRecord[Any]) -> None:
        if not one.stale:
            self._alarm_ms[name] = self._clock()
        one.alarm()

    def _note_contact(self) -> None:
        if self._store.session_state is SessionState.CONNECTED:
            self._lost_ms = 0
        elif not self._lost_ms:
            self._lost_ms = self._clock()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


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
"""Browsers accept only this style sheet (csrf.py)."""

ROWS_SHOWN_MAX = 500
_NAMED_MAX = 10
_UNKNOWN = "Unknown: the metadata store has not answered since this broker started."


def page(
    figures: dict[str, Any],
    partitions: Sequence[PartitionStats],
    more: int,
    url: str,
    now_ms: int,
) -> str:
    """Make the page; `more`: how many partitions are not shown."""
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
    """Make a table; a column whose head begins with `#` has numbers."""
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
