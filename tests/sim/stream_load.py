"""Durable streams of a seed: made, appended to, read, closed, forked and deleted, at any broker.

Profile `stream`. A producer repeats an append under its sequence until it is answered, and
sometimes after that; a writer without numbers sends once. Clients are bound to the incarnation of a
stream that they met: a late `PUT` may make another stream of the name after a deletion.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from aiohttp import web

from octavo.broker.http import durable
from octavo.broker.http.call import INCARNATION_HEADER
from octavo.broker.state.stream import Append
from octavo.broker.types import TopicName, TopicSettings
from tests.sim.brokers import CALL_TIMEOUT_S
from tests.sim.stream_audit import Sent, StreamHistory
from tests.sim.stream_face import POLL_MS, Face, Request
from tests.sim.topic_client import EXPECTED, RETRY_S, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_PAUSE_S = 0.05
_GAPS_MAX = 200
_READ_WITHIN_S = 15.0
_PASSING = (429, 503, 504)
_TEXT, _JSON = "text/plain", "application/json"
_REPLACED = "topic-replaced"
_END = ";"
"""The end of each message in a stream without JSON."""


class StreamOptions(NamedTuple):
    producers: int
    writers: int
    readers: int
    closes_p: float
    deletes_p: float
    repeats_p: float
    pipeline: int
    messages_max: int
    read_bytes: int
    streams_max: int
    pause_s: float
    insists_p: float
    """How often writers and closers repeat a call without an answer."""


def draw(rng: random.Random) -> StreamOptions:
    return StreamOptions(
        producers=rng.choice((1, 2, 3)),
        writers=rng.choice((0, 1, 2)),
        readers=rng.choice((1, 2)),
        closes_p=rng.choice((0.02, 0.1, 0.3)),
        deletes_p=rng.choice((0.05, 0.3)),
        repeats_p=rng.choice((0.1, 0.5)),
        pipeline=rng.choice((1, 2, 4)),
        messages_max=rng.choice((1, 3)),
        read_bytes=rng.choice((1, 300, 100_000)),
        streams_max=rng.choice((1, 2, 5)),
        pause_s=rng.choice((0.005, 0.02, 0.05)),
        insists_p=rng.choice((0.5, 0.9)),
    )


class StreamLoad:
    def __init__(
        self, load: TopicLoad, options: StreamOptions, face: Face, settings: TopicSettings
    ) -> None:
        self.load = load
        self.options = options
        self.face = face
        self.settings = settings
        self.streams: list[StreamHistory] = []
        self.settled = False
        self._numbers = 0

    def start(self) -> None:
        options = self.options
        lives = [
            ("dm", self._make),
            *((f"dp{n}", self._produce) for n in range(options.producers)),
            *((f"dw{n}", self._write) for n in range(options.writers)),
            *((f"dr{n}", self._read) for n in range(options.readers)),
        ]
        clients = [TopicClient(self.load, name, life) for name, life in lives]
        self.load.clients += clients
        for client in clients:
            client.start()

    def settle(self) -> None:
        TopicClient(self.load, "ds", self._finish).start()

    # Calls

    @staticmethod
    def _about(
        stream: StreamHistory,
        method: str,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Request:
        bound = {**(headers or {}), INCARNATION_HEADER: stream.incarnation}
        return Request(method, stream.name, bound, query or {}, body)

    async def _call(self, client: TopicClient, asked: Request) -> web.Response | None:
        at = client.rng.choice([b for b in self.load.brokers.values() if not b.held_down])
        assert client.process is not None
        wait_s = POLL_MS / 1000 if "live" in asked.query else 0.0
        try:
            answer: web.Response = await self.load.cluster.network.call(
                client.process, at.name, partial(self.face.answer, at, asked),
                CALL_TIMEOUT_S + wait_s,
            )  # fmt: skip
        except EXPECTED:
            return None
        self._probe(f"{asked.method}.{answer.status}")
        if answer.status == 500:
            self.load.audit.fail(f"unforeseen answer to {asked}: {_text(answer)}")
        return answer

    async def _answer(
        self, client: TopicClient, asked: Request, *, insists: bool
    ) -> web.Response | None:
        """Return a final answer, or None; with `insists`, repeat until there is one."""
        if insists:
            return await self._insist(client, asked)
        answer = await self._call(client, asked)
        return None if answer is None or answer.status in _PASSING else answer

    async def _insist(self, client: TopicClient, asked: Request) -> web.Response:
        """Repeat until there is a final answer; only for calls that may be done twice."""
        while True:
            answer = await self._call(client, asked)
            if answer is not None and answer.status not in _PASSING:
                return answer
            await client.pause(RETRY_S)

    async def _create(self, client: TopicClient, name: TopicName) -> None:
        assert client.process is not None
        while True:
            at = client.rng.choice([b for b in self.load.brokers.values() if not b.held_down])
            work = partial(at.with_broker, lambda b: b.topics.create(name, self.settings))
            try:
                await self.load.cluster.network.call(client.process, at.name, work, CALL_TIMEOUT_S)
                return
            except EXPECTED:
                await client.pause(RETRY_S)

    def _standing(self) -> list[StreamHistory]:
        return [one for one in self.streams if not one.going]

    def _probe(self, what: str) -> None:
        self.load.cluster.trace.probe(f"stream.{what}")

    def _values(self, client: TopicClient, stream: StreamHistory) -> list[str]:
        count = client.rng.randint(1, self.options.messages_max) if stream.is_json else 1
        self._numbers += count
        first = self._numbers - count
        return [f"{client.name}.{client.run}-{first + n}" for n in range(count)]

    # Lives

    async def _make(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_PAUSE_S)
            standing = self._standing()
            crowded = len(standing) >= self.options.streams_max
            if standing and (crowded or client.rng.random() < self.options.deletes_p):
                await self._delete(client, client.rng.choice(standing))
            else:
                await self._put(client, client.rng.choice([None, None, *standing]))

    async def _put(self, client: TopicClient, source: StreamHistory | None) -> None:
        rng = client.rng
        self._numbers += 1
        name = TopicName("public", f"d{self._numbers}")
        is_json = rng.random() < 0.4 if source is None else source.is_json
        stream = StreamHistory(
            name, self.load.audit.fail, is_json, not self.load.options.definite, source
        )
        headers = {"Content-Type": _JSON if is_json else _TEXT}
        if source is None:
            await self._create(client, name)
        else:
            headers[durable.FORKED_FROM_HEADER] = f"{durable.PATH}{source.name}"
            if rng.random() < 0.5:
                at = rng.randint(0, source.seen_end)
                headers[durable.FORK_OFFSET_HEADER] = durable.offset_text(at)
        if rng.random() < 0.05:
            headers[durable.CLOSED_HEADER] = "true"
        values = self._values(client, stream) if rng.random() < 0.3 else []
        first = stream.sends(values, Append(is_first=True))
        answer = await self._insist(
            client, Request("PUT", name, headers, body=_body(stream, values))
        )
        if answer.status not in (200, 201):
            if source is None or not source.going:
                self._unexpected(stream, "PUT", answer)
            return
        stream.incarnation = answer.headers[INCARNATION_HEADER]
        end = _end(answer)
        stream.base = end - len(values)
        if source is None and stream.base:
            self._unexpected(stream, "PUT", answer)
        if source is not None and durable.FORK_OFFSET_HEADER in headers and stream.base != at:
            self._unexpected(stream, f"PUT at {at}", answer)
        stream.acked(first, end, new=True, closed=_closed(answer))
        self.streams.append(stream)
        self._probe("made" if source is None else "forked")

    async def _delete(self, client: TopicClient, stream: StreamHistory) -> None:
        stream.going = True
        answer = await self._insist(client, self._about(stream, "DELETE"))
        if answer.status != 204 and not _is_gone(answer):
            self._unexpected(stream, "DELETE", answer)

    async def _produce(self, client: TopicClient) -> None:
        rng, options = client.rng, self.options
        while not self.load.over:
            await client.pause(options.pause_s)
            standing = [one for one in self._standing() if one.closed_at is None]
            if not standing:
                continue
            stream = rng.choice(standing)
            stream.epochs[client.name] += 1
            epoch = stream.epochs[client.name]
            begun: list[tuple[Sent, asyncio.Task[bool]]] = []
            for sequence in range(rng.randint(1, 6)):
                closes = rng.random() < options.closes_p
                values = [] if closes and rng.random() < 0.5 else self._values(client, stream)
                sent = stream.sends(values, Append(client.name, epoch, sequence, None, closes))
                before = [one for one, _ in begun]
                assert client.process is not None
                work = self._until_stored(client, stream, sent, before)
                begun.append((sent, client.process.spawn(work, f"append {client.name}")))
                if len(begun) >= options.pipeline and not await begun[-options.pipeline][1]:
                    break
                if rng.random() < options.repeats_p:
                    again = rng.choice(begun)[0]
                    await self._until_stored(client, stream, again, before)
                if closes:
                    break
            for _, task in begun:
                await task

    async def _until_stored(
        self, client: TopicClient, stream: StreamHistory, sent: Sent, before: list[Sent]
    ) -> bool:
        """Send until it is stored; return whether more may be appended. `before`: appends that must
        be stored first."""
        gaps, said = 0, sent.append
        headers = {
            **_headers(stream, said),
            "Producer-Id": said.producer or "",
            "Producer-Epoch": str(said.epoch),
            "Producer-Seq": str(said.sequence),
        }
        asked = self._about(stream, "POST", headers, body=_body(stream, sent.values))
        while True:
            may_follow = all(one.acked for one in before if one is not sent)
            was_acked = sent.acked
            answer = await self._call(client, asked)
            if answer is None or answer.status in _PASSING:
                await client.pause(RETRY_S)
                continue
            if answer.status in (200, 204):
                new = answer.status == 200
                if new and was_acked:
                    self._unexpected(stream, f"POST {sent} again", answer)
                stream.acked(sent, _end(answer), new=new, closed=_closed(answer))
                self._probe("appended" if new else "repeated")
                return not _closed(answer)
            if self._is_over(stream, answer):
                return False
            gaps += 1  # an earlier append may not be stored yet
            if answer.status not in (400, 409) or may_follow or gaps > _GAPS_MAX:
                self._unexpected(stream, f"POST {sent}", answer)
                return False
            await client.pause(RETRY_S)

    def _is_over(self, stream: StreamHistory, answer: web.Response) -> bool:
        if _closed(answer):
            stream.ends(_end(answer), closed=True)
            self._probe("refused_closed")
            return True
        if _is_gone(answer):
            if not stream.going:
                self._unexpected(stream, "POST", answer)
            return True
        return False

    async def _write(self, client: TopicClient) -> None:
        rng = client.rng
        while not self.load.over:
            await client.pause(self.options.pause_s)
            standing = self._standing()
            if not standing:
                continue
            stream = rng.choice(standing)
            insists = rng.random() < self.options.insists_p
            if rng.random() < self.options.closes_p:
                await self._close(client, stream, insists=insists)
                continue
            stream.sequences += 1
            seq = f"{stream.sequences:06}" if rng.random() < 0.5 else None
            closes = rng.random() < self.options.closes_p
            sent = stream.sends(self._values(client, stream), Append(stream_seq=seq, closes=closes))
            headers = _headers(stream, sent.append)
            asked = self._about(stream, "POST", headers, body=_body(stream, sent.values))
            answer = await self._answer(client, asked, insists=insists and seq is not None)
            if answer is None or self._has_come(answer, stream, seq):
                continue
            if answer.status == 204:
                stream.acked(sent, _end(answer), new=True, closed=_closed(answer))
                self._probe("written")
            elif not self._is_over(stream, answer):
                self._unexpected(stream, f"POST {sent}", answer)

    def _has_come(self, answer: web.Response, stream: StreamHistory, seq: str | None) -> bool:
        """Whether the answer refuses a `Stream-Seq`: another writer's came first, or this one came
        twice."""
        return seq is not None and answer.status == 409 and not _closed(answer)

    async def _close(
        self, client: TopicClient, stream: StreamHistory, *, insists: bool = True
    ) -> None:
        asked = self._about(stream, "POST", {durable.CLOSED_HEADER: "true"})
        answer = await self._answer(client, asked, insists=insists)
        if answer is None:
            return
        if answer.status == 204:
            stream.ends(_end(answer), closed=_closed(answer))
            if not _closed(answer):
                self._unexpected(stream, "POST", answer)
            self._probe("closed")
        elif not self._is_over(stream, answer):
            self._unexpected(stream, "POST", answer)

    async def _read(self, client: TopicClient) -> None:
        rng = client.rng
        stream, offset = None, 0
        while not self.load.over:
            await client.pause(self.options.pause_s)
            if (stream is None or stream.going or rng.random() < 0.2) and (
                standing := self._standing()
            ):
                stream = rng.choice(standing)
                offset = rng.randint(0, stream.seen_end)
            if stream is not None:
                live = rng.random() < 0.5
                found = await self._read_once(client, stream, offset, live=live)
                offset = offset if found is None else found[0]

    async def _read_once(
        self, client: TopicClient, stream: StreamHistory, offset: int, *, live: bool = False
    ) -> tuple[int, bool] | None:
        """Read once; return where to continue and whether the stream ends there, or None without an
        answer."""
        query = {"offset": durable.offset_text(offset), **({"live": "long-poll"} if live else {})}
        answer = await self._call(client, self._about(stream, "GET", query=query))
        if answer is None or answer.status in _PASSING:
            return None
        if answer.status not in (200, 204):
            if not (stream.going and _is_gone(answer)):
                self._unexpected(stream, f"GET {offset}", answer)
            return None
        following = _end(answer)
        stream.shows(offset, _shown(stream, answer), following)
        stream.ends(following, closed=_closed(answer))
        if answer.status == 200 and durable.UP_TO_DATE_HEADER not in answer.headers:
            self._probe("page")
            if following == offset:
                self._unexpected(stream, f"GET {offset}", answer)
        elif _closed(answer):
            self._probe("read_closed")
        return following, _closed(answer)

    def _unexpected(self, stream: StreamHistory, what: str, answer: web.Response) -> None:
        told = dict(answer.headers)
        self.load.audit.fail(
            f"X20 stream {stream.name}: {what} is answered {answer.status} {told} {_text(answer)}"
        )

    # In the end

    async def _finish(self, client: TopicClient) -> None:
        while not self.load.is_done:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
        for number, stream in enumerate(self._standing()):
            await self._check(client, stream)
            if number % 2 == 0:
                await self._close(client, stream)
                await self._check(client, stream)
            elif number % 3 == 0:
                await self._delete(client, stream)
        self.settled = True

    async def _check(self, client: TopicClient, stream: StreamHistory) -> None:
        loop = self.load.cluster.loop
        until_s, offset, closed, at_end = loop.time() + _READ_WITHIN_S, 0, False, 0
        while at_end < 2:
            found = await self._read_once(client, stream, offset)
            if found is not None:
                at_end = at_end + 1 if found[0] == offset >= stream.seen_end else 0
                offset, closed = found
            if loop.time() > until_s:
                self.load.audit.fail(f"X20 stream {stream.name} cannot be read beyond {offset}")
                return
            await client.pause(RETRY_S / 4)
        stream.check_whole(offset, closed=closed)
        self._probe("checked")


def _headers(stream: StreamHistory, append: Append) -> dict[str, str]:
    headers = {"Content-Type": _JSON if stream.is_json else _TEXT}
    if append.stream_seq is not None:
        headers[durable.SEQ_HEADER] = append.stream_seq
    if append.closes:
        headers[durable.CLOSED_HEADER] = "true"
    return headers


def _body(stream: StreamHistory, values: Any) -> bytes:
    if not values:
        return b""
    return msgspec.json.encode(values) if stream.is_json else f"{values[0]}{_END}".encode()


def _shown(stream: StreamHistory, answer: web.Response) -> list[str]:
    body = answer.body or b""
    assert isinstance(body, bytes)
    if not stream.is_json:
        return body.decode().split(_END)[:-1]
    return msgspec.json.decode(body, type=list[str]) if body else []


def _end(answer: web.Response) -> int:
    found = durable.offset_of(answer.headers.get(durable.OFFSET_HEADER, ""))
    assert found is not None, (answer.status, dict(answer.headers))
    return found


def _closed(answer: web.Response) -> bool:
    return durable.CLOSED_HEADER in answer.headers


def _is_gone(answer: web.Response) -> bool:
    return answer.status in (404, 410) or _REPLACED in _text(answer)


def _text(answer: web.Response) -> str:
    return str(answer.body)[:400]
