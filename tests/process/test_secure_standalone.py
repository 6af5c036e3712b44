"""`octavo standalone --secure` and the guide's six commands: two users with different rights."""

from __future__ import annotations

import json
import os
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import ApiError, Client
from tests.support.processes.standalone import Standalone, octavo, standalone, until

TOPIC = "/v1/topics/public/orders"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("secure") / "data", "--secure") as one:
        yield one


def ran(one: Standalone, *arguments: str) -> str:
    done = octavo(*arguments, "--data", str(one.folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(one: Standalone, path: str, token: str = "", data: bytes | None = None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    context = ssl.create_default_context(cafile=one.cluster.shown[0])
    request = urllib.request.Request(one.cluster.urls[1] + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.long
def test_two_users_get_different_rights(secure: Standalone) -> None:
    ran(secure, "topic", "create", "orders")
    ran(secure, "acl", "allow", "user:alice", "produce", "topic:public/orders")
    ran(secure, "acl", "allow", "user:bob", "consume", "topic:public/orders")
    alice = ran(secure, "token", "create", "--principal", "user:alice").strip()
    bob = ran(secure, "token", "create", "--principal", "user:bob").strip()
    read, publish = f"{TOPIC}/messages?from=earliest", f"{TOPIC}/messages"
    until(lambda: asked(secure, publish, alice, b"x") == 200, "alice may publish", 10)
    until(lambda: asked(secure, read, bob) == 200, "bob may read", 10)
    assert asked(secure, read, alice) == 403
    assert asked(secure, publish, bob, b"x") == 403
    for token in ("", "x", alice[:-2]):
        assert asked(secure, read, token) == 401
        assert asked(secure, publish, token, b"x") == 401
    for path in ("/", "/metrics", "/v1/cluster", "/v1/brokers", "/v1/ledgers", "/v1/namespaces"):
        assert (asked(secure, path), asked(secure, path, alice)) in ((401, 403), (401, 200)), path
    assert asked(secure, "/healthz") == 200
    ca_file = secure.cluster.shown[0]
    with Client(secure.cluster.urls, ca_file=ca_file, token=bob) as client:
        assert client.read("orders", start="earliest")[0].value == b"x"
        with pytest.raises(ApiError) as refused:
            client.publish("orders", b"y")
        assert (refused.value.status, refused.value.code) == (403, "forbidden")
    told = ran(secure, "acl", "explain", "user:bob", "produce", "topic:public/orders")
    assert told.startswith("no: no rule allows user:bob to produce")


def test_the_administrators_token_is_for_its_owner_alone(secure: Standalone) -> None:
    path = Path(secure.cluster.token_file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.getuid()
    token = path.read_text().strip()
    for file in secure.folder.rglob("*"):
        if file.is_file() and file != path:
            assert token.encode() not in file.read_bytes(), file


@pytest.mark.long
def test_a_right_that_is_withdrawn_ends_a_stream_at_each_broker(secure: Standalone) -> None:
    ran(secure, "topic", "create", "watched")
    rule = ("user:carol", "consume", "topic:public/watched")
    ran(secure, "acl", "allow", *rule)
    token = ran(secure, "token", "create", "--principal", "user:carol").strip()
    path = "/v1/topics/public/watched/messages?follow=true"
    until(lambda: asked(secure, path.partition("?")[0], token) in (200, 204), "carol may read", 10)
    context = ssl.create_default_context(cafile=secure.cluster.shown[0])
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/x-ndjson"}
    streams = [
        urllib.request.urlopen(
            urllib.request.Request(url + path, headers=headers), timeout=30, context=context
        )
        for url in secure.cluster.urls
    ]
    ran(secure, "acl", "remove", *rule)
    began = time.monotonic()
    for stream in streams:
        assert json.loads(stream.read())["problem"]["code"] == "forbidden"
    assert time.monotonic() - began < 5


@pytest.mark.long
def test_it_is_still_secured_when_it_starts_again(tmp_path: Path) -> None:
    one = Standalone(tmp_path / "data", "--secure", "--bookies", "1", "--brokers", "1")
    again = Standalone(tmp_path / "data", "--tls", "--bookies", "1", "--brokers", "1")
    try:
        one.start()
        token = Path(one.cluster.token_file).read_text()
        one.stop()
        again.start()
        context = ssl.create_default_context(cafile=again.cluster.shown[0])
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(again.cluster.urls[0] + "/v1/cluster", context=context)
        assert refused.value.code == 401
        assert Path(again.cluster.token_file).read_text() == token
        assert json.loads(ran(again, "topic", "list", "--json")) is not None
    finally:
        one.clean_up()
        again.clean_up()
