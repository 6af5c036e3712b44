"""Secrets appear only where they belong, and messages of an encrypted namespace never on a disk."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from octavo import Client
from octavo.broker.http.routes import ROUTES
from octavo.broker.operations.upgrade import KEY_USE
from octavo.client.errors import ApiError
from octavo.metadata.opening import open_store
from octavo.metadata.secret import SECRET_PATH, cluster_secret
from tests.support.processes.canaries import Watcher, said
from tests.support.processes.standalone import (
    OCTAVO,
    Standalone,
    environment,
    octavo,
    standalone,
    until,
)

pytestmark = pytest.mark.long

BEARER = "eyJhbGciOiJIUzI1NiJ9.Y2FuYXJ5LWJlYXJlcg.c2lnbmF0dXJlLWNhbmFyeQ"
PASSWORD = "canary-password-7Q"
API_KEY = "canary-api-key-81"
COOKIE = "canary-cookie-55"
IN_QUERY = "canary-in-query-93"
LOAD_TOKEN = "canary-load-token-17"
IN_FILE = "canary-in-credentials-file-29"
BASIC = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
PLANTED = (BEARER, PASSWORD, BASIC, API_KEY, COOKIE, IN_QUERY, LOAD_TOKEN, IN_FILE)
HEADERS = (
    {"Authorization": f"Bearer {BEARER}"},
    {"Authorization": f"Basic {BASIC}"},
    {"X-Api-Key": API_KEY, "Cookie": f"session={COOKIE}"},
    {"Authorization": f"Bearer {BEARER}", "Bulk-Load-Token": LOAD_TOKEN},
)
ITS_OWN = re.compile(r"metadata\.db.*|.*\.key|admin\.token")


class Cluster:
    def __init__(self, running: Standalone) -> None:
        self.running = running
        self.said: list[bytes] = []
        made = octavo("token", "create", "--principal", "user:alice", "--data", str(running.folder))
        assert made.returncode == 0, made.stderr
        self.tokens = [made.stdout.strip(), Path(running.cluster.token_file).read_text().strip()]
        """A user's and the administrator's."""
        self._tls = ssl.create_default_context(cafile=str(running.folder / "tls" / "ca.pem"))

    def ask(
        self, url: str, method: str, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> int:
        at = urlsplit(url)
        connection = http.client.HTTPSConnection(
            at.hostname or "", at.port, context=self._tls, timeout=20
        )
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            self.said += [str(answer.headers).encode(), answer.read()]
            return answer.status

    def raw(self, url: str, data: bytes) -> bytes:
        at = urlsplit(url)
        with (
            socket.create_connection((at.hostname or "", at.port or 0), 20) as plain,
            self._tls.wrap_socket(plain, server_hostname=at.hostname) as tls,
        ):
            tls.sendall(data)
            found = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                tls.settimeout(5)
                while piece := tls.recv(65536):
                    found += piece
            self.said.append(found)
            return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("canaries") / "data"
    with standalone(folder, "--secure") as running:
        yield Cluster(running)


def secrets_of(cluster: Cluster) -> list[bytes]:
    folder = cluster.running.folder

    async def own() -> list[bytes]:
        store = open_store(cluster.running.cluster.metadata_url)
        await store.start()
        try:
            secret = await cluster_secret(store)
            keys = [secret.key(use) for use in (KEY_USE, "ledgers", "tokens", "nodes")]
            raw = (await store.get(SECRET_PATH)).value
            digits = re.search(rb"[0-9a-f]{64}", raw)
            assert digits is not None
            return [digits[0], bytes.fromhex(digits[0].decode()), *keys, *_written(keys)]
        finally:
            await store.close()

    found = [one.encode() for one in (*PLANTED, *cluster.tokens)] + asyncio.run(own())
    for key in sorted((folder / "tls").glob("*.key")):
        lines = [one for one in key.read_bytes().splitlines() if not one.startswith(b"-")]
        assert lines, "a private key"
        found += [line for line in lines if len(line) > 20]
    return found


def _written(keys: list[bytes]) -> list[bytes]:
    return [one.hex().encode() for one in keys] + [base64.b64encode(one) for one in keys]


def plant(cluster: Cluster) -> None:
    topic = "/v1/topics/public/canaries"
    urls = cluster.running.cluster.urls
    for url in urls:
        real = [{"Authorization": f"Bearer {token}"} for token in cluster.tokens]
        for headers in (*HEADERS, *real):
            for method, path, body in (
                ("PUT", topic, b"{}"),
                ("POST", f"{topic}/messages", b"hello"),
                ("POST", f"{topic}/messages?access_token={IN_QUERY}", b"hello"),
                ("GET", f"{topic}/messages?from={'x' * 70}&token={IN_QUERY}", None),
                ("GET", "/v1/topics/public/nothing", None),
                ("GET", "/v1/nowhere", None),
                ("DELETE", "/healthz", None),
                ("POST", f"{topic}/messages?results=all", b'{"value":'),
                ("POST", "/v1/bulk-loads/canary/batches/0/commit", b'{"parts":[]}'),
                ("GET", "/v1/operations", None),
            ):
                cluster.ask(
                    url, method, path, {"Content-Type": "application/json", **headers}, body
                )
        for broken in (
            f"GET /v1/cluster HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {BEARER}\0\r\n\r\n",
            f"GET /v1/cluster HTTP/1.1\r\nHost: x\r\nAuthori zation: Bearer {BEARER}\r\n\r\n",
            f"GET /?t={IN_QUERY} HTTP/1.1\r\nHost: x\r\nX-Api-Key {API_KEY}\r\n\r\n",
            f"GET /?t={IN_QUERY}\0 HTTP/1.1\r\nHost: x\r\n\r\n",
            f"{PASSWORD} / HTTP/9.9\r\n\r\n",
            f"GET / HTTP/1.1\r\nHost: x\r\nX-Api-Key: {API_KEY}{'k' * 20_000}\r\n\r\n",
            f"POST {topic}/messages HTTP/1.1\r\nHost: x\r\nCookie: {COOKIE}\r\n"
            f"Transfer-Encoding: chunked\r\n\r\n{PASSWORD}\r\n",
        ):
            answer = cluster.raw(url, broken.encode("latin-1"))
            assert answer[:10] in (b"HTTP/1.0 4", b"HTTP/1.1 4"), answer


def end_badly(cluster: Cluster, folder: Path) -> None:
    credentials = folder / "credentials"
    credentials.write_text(f"{IN_FILE}\nalice:{IN_FILE}\n")
    for debug in ("0", "1"):
        told = subprocess.run(
            [*OCTAVO, "broker", "--metadata", "zk://127.0.0.1:1/x"],
            env={
                **environment(), "OCTAVO_DEBUG": debug,
                "OCTAVO_METADATA_CREDENTIALS_FILE": str(credentials),
            },
            capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert told.returncode, told
        cluster.said += [told.stdout, told.stderr]
    running = cluster.running
    topic = "/v1/topics/public/canaries/messages"
    for url in running.cluster.urls:
        for _ in range(3):
            headers = {"Authorization": f"Bearer {cluster.tokens[1]}"}
            assert cluster.ask(url, "POST", topic, headers, b"x") == 200
    pid = running.pids()["broker-2"]
    os.kill(pid, signal.SIGABRT)
    until(lambda: running.pids().get("broker-2", pid) != pid, "it is started again")


def listen(cluster: Cluster) -> None:
    plain = [one.path for one in ROUTES if one.method == "GET" and "{" not in one.path]
    running = cluster.running
    for url in running.cluster.urls:
        of_topics = ("public", "public/canaries", "octavo", "octavo/audit", "octavo/audit/messages")
        for path in (*plain, *(f"/v1/topics/{one}" for one in of_topics)):
            headers = {"Authorization": f"Bearer {cluster.tokens[1]}"}
            assert cluster.ask(url, "GET", path, headers) in (200, 204), path
    for member in running.cluster.of_kind("bookie"):
        for path in (
            "/healthz",
            "/readyz",
            "/metrics",
            "/ledgers",
            "/damage",
            "/scrub",
            "/nothing",
        ):
            cluster.ask(f"https://127.0.0.1:{member.admin_port}", "GET", path, HEADERS[0])


def test_no_secret_is_told(cluster: Cluster, tmp_path: Path) -> None:
    plant(cluster)
    listen(cluster)
    audited = b"".join(one for one in cluster.said if b'"principal"' in one)
    assert b"user:alice" in audited, "what she was refused stands in the audit log"
    pids = [*cluster.running.pids().values()]
    assert cluster.running.process is not None
    lines = [Path(f"/proc/{pid}/cmdline") for pid in (*pids, cluster.running.process.pid)]
    commands = {str(one): one.read_bytes() for one in lines}
    end_badly(cluster, tmp_path)
    secrets = secrets_of(cluster)
    assert len(secrets) > len(PLANTED) + 15
    files = {
        str(path): path.read_bytes()
        for path in cluster.running.folder.rglob("*")
        if path.is_file() and not ITS_OWN.fullmatch(path.name)
    }
    assert any("log" in name and b"request_malformed" in text for name, text in files.items())
    everything = {**files, **commands, "answers": b"\n".join(cluster.said)}
    told = {
        (name, secret)
        for name, text in everything.items()
        for secret in secrets
        if secret in text or _escaped(secret) in text
    }
    assert not told, sorted(told)


def _escaped(secret: bytes) -> bytes:
    return repr(secret)[2:-1].encode()


def test_the_audit_log_is_read_as_the_guide_says(cluster: Cluster) -> None:
    data = ("--data", str(cluster.running.folder))
    assert octavo("topic", "create", "told", *data).returncode == 0
    found = octavo(
        "consume", "octavo/audit", "--subscription", "auditors", "--limit", "1", *data, timeout_s=30
    )
    assert found.returncode == 0, found.stderr
    assert '"principal"' in found.stdout
    assert octavo("publish", "octavo/audit", "forged", *data).returncode == 1


CANARY = b"canary-5d1e0c77"


def keys_of(path: Path) -> list[bytes]:
    return [base64.b64decode(line.split()[2]) for line in lines_of(path)]


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets" / "keys"
    path.parent.mkdir()
    said("keys", "add", "payments", "--file", str(path))
    return path


def test_no_message_is_on_a_disk_before_or_after_its_key_is_forgotten(
    tmp_path: Path, key_file: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (key,) = keys_of(key_file)
    with (
        Watcher(folder, CANARY, key) as watcher,
        standalone(folder, "--set", f"keys.file={key_file}") as one,
        Client(one.cluster.urls) as client,
    ):
        url = one.cluster.urls[0]
        said("namespace", "set", "payments", "--encrypted", "--url", url)
        assert "yes" in said("namespace", "list", "--url", url)
        client.create_topic("payments/orders")
        client.create_topic("open")
        wanted = [CANARY * 50 + b" %d" % number for number in range(60)]
        for number, message in enumerate(wanted):
            client.publish("payments/orders", message)
            if number == 20:
                one.kill("bookie-1")
            if number == 40:
                one.kill("broker-1")
        assert [m.value for m in client.messages("payments/orders")] == wanted
        data = ("--data", str(folder))
        listed = said("keys", "list", "--file", str(key_file), *data, "--json")
        assert json.loads(listed.splitlines()[0])["ledgers"] >= 1
        (key_id,) = [line.split()[1] for line in lines_of(key_file)]
        ledger = re.search(r'"ledger_id": ?(\d+)[^\n]*octavo\.encryption', ledgers_of(folder))
        assert ledger is not None
        assert f"key {key_id} of namespace payments" in said("ledger", "read", ledger[1], *data)
        with_key = said("ledger", "read", ledger[1], *data, "--raw", OCTAVO_KEYS_FILE=str(key_file))
        assert CANARY.decode() in with_key

        said("keys", "forget", "payments", "--file", str(key_file), "--yes")
        time.sleep(1)
        with pytest.raises(ApiError, match=f"{key_id} of namespace payments"):
            list(client.messages("payments/orders"))
        client.publish("open", b"others are served")
        which = (str(folder / "bookie-2"), "--ledger", ledger[1])
        shown = said("inspect", "journal", *which, "--verify", "--entries")
        assert "encrypted (the ledger's record names the key)" in shown
    for number in (1, 2, 3):
        said("bookie", "check", str(folder / f"bookie-{number}"))
    watcher.look()
    assert watcher.rounds > 3
    assert not watcher.found
    assert any(b"others are served" in path.read_bytes() for path in journals(folder)), (
        "the watcher would see one that is in the clear"
    )


def ledgers_of(folder: Path) -> str:
    lines = octavo("ledger", "list", "--data", str(folder), "--json").stdout
    return lines.replace("},{", "},\n{").replace("}, {", "},\n{")


def journals(folder: Path) -> list[Path]:
    return [path for path in folder.glob("bookie-*/**/*") if path.is_file()]


def test_rotation_by_the_commands_of_the_page(tmp_path: Path, key_file: Path) -> None:
    folder = tmp_path / "data"
    old = lines_of(key_file)[0].split()[1]
    with (
        standalone(folder, "--set", f"keys.file={key_file}") as one,
        Client(one.cluster.urls) as client,
    ):
        client.create_namespace("payments", encrypted=True)
        client.create_topic("payments/orders")
        for number in range(5):
            client.publish("payments/orders", b"%d" % number)
        said("keys", "add", "payments", "--file", str(key_file))
        data = ("--data", str(folder))
        assert "wrapped again" in said("keys", "rewrap", *data, OCTAVO_KEYS_FILE=str(key_file))
        said("keys", "forget", "payments", "--key", old, "--file", str(key_file), "--yes")
        time.sleep(1)
        assert [m.value for m in client.messages("payments/orders")] == [
            b"%d" % n for n in range(5)
        ]
        client.publish("payments/orders", b"5")
        until(
            lambda: len(list(client.messages("payments/orders"))) == 6,
            "the sixth message is there",
        )
