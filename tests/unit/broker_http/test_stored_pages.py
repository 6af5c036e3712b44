"""Users' stored content never runs in a browser as a page of the broker.

A durable stream of `text/html` or SVG was served from the broker's origin, where its scripts could
make every call that its reader may make.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from octavo.broker.http.csrf import PAGE_HEADERS, SANDBOX, protect
from tests.support.memory_cluster import Running

ONE = "/v1/topics/public/one"


class Asked:
    method = "GET"
    secure = False
    headers: Mapping[str, str] = MappingProxyType({})


def answered(kind: str, method: str = "GET", **more: str) -> dict[str, str]:
    asked, answer = Asked(), {"Content-Type": kind, **more}
    asked.method = method
    protect(answer, asked, ())
    return answer


@pytest.mark.parametrize(
    "kind",
    [
        "text/html", "text/html; charset=utf-8", "TEXT/HTML", "image/svg+xml", "application/xml",
        "text/xml", "application/xhtml+xml", "text/javascript", "application/pdf", "text/css",
        "application/wasm", "multipart/x-mixed-replace", "x/y", "text/vtt", "message/rfc822",
    ],
)  # fmt: skip
def test_an_active_type_is_saved_and_not_shown(kind: str) -> None:
    found = answered(kind)
    assert found["Content-Security-Policy"] == SANDBOX
    assert found["Content-Disposition"] == "attachment"
    assert found["X-Content-Type-Options"] == "nosniff"
    assert found["Content-Type"] == kind, "programs get the type that was given"


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain; charset=utf-8", "image/png", "video/mp4", ""]
)
def test_a_passive_type_is_shown_in_a_sandbox(kind: str) -> None:
    found = answered(kind)
    assert found["Content-Security-Policy"] == SANDBOX
    assert "Content-Disposition" not in found


def test_the_status_page_keeps_its_own_policy() -> None:
    found = answered("text/html", **PAGE_HEADERS)
    assert found["Content-Security-Policy"] == PAGE_HEADERS["Content-Security-Policy"]
    assert "Content-Disposition" not in found


PLACES = [
    f"{ONE}/messages", f"{ONE}/messages?from=nonsense<script>", f"{ONE}/messages/0/body",
    "/v1/<script>alert(1)</script>", "/v1/topics/public/%3Cscript%3E",
    "/v1/schemas/subjects/public", "/openapi.json", "/metrics", "/healthz",
    "/v1/topics/public", "/v1/cluster", ONE,
]  # fmt: skip


@pytest.mark.parametrize("path", PLACES)
async def test_every_answer_to_a_get_is_in_the_sandbox(one: Running, path: str) -> None:
    await one.api.put(ONE)
    await one.api.post(ONE + "/messages", b"<script>alert(1)</script>", "text/html")
    answer = await one.api.get(path, headers={"Accept": "text/html,*/*"})
    assert answer.headers["Content-Security-Policy"] == SANDBOX, answer
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    assert not kind.startswith("text/html"), answer


async def test_the_status_page_runs_nothing_of_a_name(one: Running) -> None:
    answer = await one.api.get("/", headers={"Accept": "text/html"})
    assert "script-src" not in answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
