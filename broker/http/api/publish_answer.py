"""What a publish request is told: how much was stored, where, and what was not and why."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from octavo.broker.http.api.publishing import Piece
from octavo.broker.http.call import NEXT_OFFSET_HEADER, RECORD_BATCH, Call
from octavo.broker.http.problems import Problem


def answer(
    call: Call, pieces: list[Piece], places: list[tuple[Piece, int]] | None
) -> web.StreamResponse:
    """200, 204 when all was there already, 207 when only a part was stored, or the problem."""
    failed = [piece for piece in pieces if piece.published is None]
    if failed and len(failed) == len(pieces):
        error = next(piece.error for piece in failed if piece.error is not None)
        raise error
    summary = summarize(pieces)
    if places is not None:
        summary["results"] = [_result(piece, index) for piece, index in places]
    if call.text("results") == "batches" and call.content_type == RECORD_BATCH:
        summary["batches"] = [_batch(piece) for piece in pieces if piece.published is not None]
    if failed:
        summary["not_confirmed"] = sum(piece.count for piece in failed)
        summary["errors"] = _errors(failed)
        return call.reply(summary, status=207)
    if summary.get("duplicates") == summary["count"] and "batches" not in summary:
        last = max(pieces, key=lambda piece: piece.last).place(pieces[-1].count - 1)
        following = {NEXT_OFFSET_HEADER: str(last["offset"] + 1)} if "offset" in last else {}
        return web.Response(status=204, headers=following)
    return call.reply(summary)


def summarize(pieces: list[Piece]) -> dict[str, Any]:
    """What was stored: how much, the first and the last of it, and how much in each partition."""
    stored = [piece for piece in pieces if piece.published is not None]
    found: dict[str, Any] = {"count": sum(piece.count for piece in stored)}
    if not stored:
        return found
    first = min(stored, key=lambda piece: piece.first)
    last = max(stored, key=lambda piece: piece.last)
    found["first"] = first.place(0)
    found["last"] = last.place(last.count - 1)
    duplicates = sum(p.count for p in stored if p.published is not None and p.published.duplicate)
    if duplicates:
        found["duplicates"] = duplicates
    numbers = sorted({piece.partition for piece in stored})
    if len(numbers) > 1:
        found["partitions"] = [
            _share([piece for piece in stored if piece.partition == number]) for number in numbers
        ]
    return found


def _errors(failed: list[Piece]) -> list[dict[str, Any]]:
    """Each reason once for each partition, with how many messages it concerns."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for piece in failed:
        if piece.error is not None:
            key = (piece.partition, piece.error.code)
            if key not in found:
                found[key] = {**piece.error.body(), "partition": piece.partition, "count": 0}
            found[key]["count"] += piece.count
    return list(found.values())


def _share(pieces: list[Piece]) -> dict[str, Any]:
    return {
        "partition": pieces[0].partition,
        "count": sum(piece.count for piece in pieces),
        "first": pieces[0].place(0),
        "last": pieces[-1].place(pieces[-1].count - 1),
    }


def _result(piece: Piece, index: int) -> dict[str, Any]:
    if piece.published is not None:
        return {"status": 200, **piece.place(index), "duplicate": piece.published.duplicate}
    assert piece.error is not None
    return {
        "status": piece.error.status,
        "partition": piece.partition,
        "code": piece.error.code,
        "detail": piece.error.detail,
        "retryable": piece.error.can_retry,
    }


def _batch(piece: Piece) -> dict[str, Any]:
    assert piece.published is not None
    first, _, ledger_id, entry_id, _, duplicate = piece.published
    return {
        "count": piece.count,
        "offset": first,
        "id": f"{ledger_id}:{entry_id}:0",
        "duplicate": duplicate,
    }


def with_stored(problem: Problem, pieces: list[Piece]) -> Problem:
    """The problem in the input, with what had been stored before it."""
    problem.extra["stored"] = summarize(pieces)
    if errors := _errors(pieces):
        problem.extra["errors"] = errors
    return problem
