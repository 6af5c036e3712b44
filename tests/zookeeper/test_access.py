"""Access to a real ZooKeeper: digest authentication and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from kazoo import exceptions as zk
from kazoo.client import KazooClient

from octavo import Client
from octavo.credentials import VARIABLE
from octavo.metadata.opening import open_store
from octavo.metadata.store import (
    BadMetadataCredentials,
    MetadataStore,
    MetadataUnavailable,
    MetadataUnusable,
    Record,
    SessionState,
)
from octavo.metadata.zookeeper import ZooKeeperStore
from octavo.metadata.zookeeper_server import ServerTls, ZooKeeperNotInstalled, pem_store
from octavo.metadata.zookeeper_tls import TlsHandler
from octavo.standalone.ports import free_port
from octavo.tls.contexts import Certificates, client_context
from octavo.tls.settings import TlsConfig
from tests.support.certificates import certificates, make
from tests.support.processes.standalone import OCTAVO, environment, octavo, standalone, until
from tests.support.zookeeper_server import ZooKeeperServer, running_zookeeper

pytestmark = pytest.mark.zookeeper
SECRET = "cluster:a:pass/word"


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.write_text(SECRET + "\n")
    return path


@pytest.fixture
def stranger(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(f"127.0.0.1:{zookeeper.port}")
    client.start()
    yield client
    client.stop()
    client.close()


def chroot_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


async def test_records_are_for_their_owner_alone(
    zookeeper: ZooKeeperServer, credentials: Path, stranger: KazooClient
) -> None:
    url = zookeeper.new_url() + "/deeper"
    ours = open_store(url, credentials_file=str(credentials))
    await ours.start()
    await ours.create("/a/b", b"x")
    await ours.create("/mine", b"", ephemeral=True)
    chroot = chroot_of(url)
    for path in (chroot, f"{chroot}/a", f"{chroot}/a/b", f"{chroot}/mine"):
        for attempt in (
            lambda path=path: stranger.get(path),
            lambda path=path: stranger.set(path, b"theirs"),
            lambda path=path: stranger.create(f"{path}/theirs", b""),
            lambda path=path: stranger.get_children(path),
        ):
            with pytest.raises((zk.NoAuthError, zk.NoChildrenForEphemeralsError)):
                attempt()
    with pytest.raises(zk.NoAuthError):
        stranger.delete(f"{chroot}/a/b")
    again = open_store(url, credentials_file=str(credentials))
    await again.start()
    assert await again.get("/a/b") == Record(b"x", 0)
    assert await again.put("/a/b", b"y", 0) == 1
    await again.close()
    await ours.close()


@pytest.mark.parametrize("text", ["", "cluster:wrong\n", "other:a:pass/word\n"])
async def test_whoever_has_other_credentials_or_none_is_told_so_at_the_start(
    zookeeper: ZooKeeperServer, credentials: Path, tmp_path: Path, text: str
) -> None:
    url = zookeeper.new_url()
    ours = open_store(url, credentials_file=str(credentials))
    await ours.start()
    await ours.create("/a", b"x")
    other = tmp_path / "other"
    other.write_text(text)
    theirs = open_store(url, credentials_file=str(other) if text else "")
    with pytest.raises(MetadataUnusable, match="metadata_credentials_file") as caught:
        await theirs.start()
    assert url in str(caught.value)
    assert "pass" not in str(caught.value).replace("password", "")
    assert "wrong" not in str(caught.value)
    await ours.close()


async def test_watches_and_rights_stand_again_after_a_new_session(
    zookeeper: ZooKeeperServer,
    credentials: Path,
    eventually: Callable[..., object],
) -> None:
    url = zookeeper.new_url()
    ours = open_store(url, session_timeout_ms=20_000, credentials_file=str(credentials))
    await ours.start()
    await ours.create("/a", b"x")
    heard: list[int] = []
    states: list[SessionState] = []
    ours.on_session(states.append)
    ours.watch_children("/a", lambda: heard.append(1))
    await asyncio.to_thread(end_session, ours, zookeeper.port)
    await eventually(lambda: states[-2:] == [SessionState.EXPIRED, SessionState.CONNECTED])  # type: ignore[misc]
    await eventually(lambda: heard)  # type: ignore[misc]
    heard.clear()
    await ours.create("/a/b", b"y")
    await eventually(lambda: heard)  # type: ignore[misc]
    assert await ours.get("/a/b") == Record(b"y", 0)
    await ours.close()


def end_session(store: object, port: int) -> None:
    """End it from another connection, as ZooKeeper does when it hears nothing."""
    twin = KazooClient(f"127.0.0.1:{port}", client_id=store._client.client_id)  # type: ignore[attr-defined]
    twin.start()
    twin.stop()
    twin.close()


@pytest.mark.parametrize("text", ["", "nobody", "user:", ":password", "a:b\nc:d\n"])
def test_a_file_of_another_form_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials"
    path.write_text(text)
    with pytest.raises(BadMetadataCredentials, match="user:password") as caught:
        open_store("zk://127.0.0.1:1/x", credentials_file=str(path))
    assert str(path) in str(caught.value)
    assert text.strip() == "" or text.strip() not in str(caught.value).replace("user:password", "")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadMetadataCredentials, match="No such file"):
        open_store("zk://127.0.0.1:1/x", credentials_file=str(tmp_path / "absent"))


@pytest.mark.long
def test_a_cluster_with_credentials(
    tmp_path: Path,
    zookeeper: ZooKeeperServer,
    credentials: Path,
    stranger: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = zookeeper.new_url()
    monkeypatch.setattr(
        "tests.support.processes.standalone.environment", with_credentials(credentials)
    )
    with standalone(tmp_path / "data", "--metadata", url) as one:
        with Client(one.cluster.urls) as client:
            client.create_topic("mine")
            client.publish_many("mine", [(None, f"m{n}") for n in range(50)])
            found = [message.text() for message in client.messages("mine")]
        assert found == [f"m{n}" for n in range(50)]
        known = json.loads(octavo("bookies", "--metadata", url, "--json").stdout)
        assert [bookie["state"] for bookie in known] == ["writable"] * 3
        logs = [path.read_text() for path in (tmp_path / "data").rglob("*.json*")]
        assert logs
        assert not any(SECRET in text or "pass/word" in text for text in logs)
        one.stop()
    for path in ("", "/ledgers", "/octavo", "/ledgers/available"):
        with pytest.raises(zk.NoAuthError):
            stranger.get_children(chroot_of(url) + path)
    monkeypatch.undo()
    without = octavo("bookies", "--metadata", url)
    assert without.returncode == 1
    assert "metadata_credentials_file" in without.stderr
    assert "Traceback" not in without.stderr


def with_credentials(path: Path) -> Callable[[], dict[str, str]]:
    return lambda: {**environment(), VARIABLE: str(path)}


@pytest.mark.long
def test_a_bookie_with_the_setting_and_one_without(
    tmp_path: Path, zookeeper: ZooKeeperServer, credentials: Path
) -> None:
    url = zookeeper.new_url()
    settings = tmp_path / "bookie.toml"
    settings.write_text(f'metadata_url = "{url}"\nmetadata_credentials_file = "{credentials}"\n')

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        data = str(tmp_path / name)
        with open(tmp_path / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                [*OCTAVO, "bookie", "--data", data, "--port", "0", "--bookie-id", name, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
            )

    first = start("with", "--config", str(settings))
    try:
        until(lambda: "bookie_ready" in (tmp_path / "with.log").read_text(), "a bookie is ready")
        second = start("without", "--metadata", url)
        assert second.wait(60) == 1
        said = (tmp_path / "without.log").read_text()
        assert "metadata_credentials_file" in said
        assert "Traceback" not in said
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
    finally:
        first.kill()
        first.wait()


@contextlib.contextmanager
def running(folder: Path, certs: Path, name: str, *, asks: bool) -> Iterator[ZooKeeperServer]:
    store = pem_store(folder / "store.pem", certs / f"{name}.pem", certs / f"{name}.key")
    context = client_context(
        ca=f"{certs}/ca.pem", certificate=f"{certs}/{name}.pem", key=f"{certs}/{name}.key"
    )
    context.check_hostname = False
    try:
        with running_zookeeper(
            folder, free_port(), ServerTls(store, certs / "ca.pem", asks), context
        ) as server:
            yield server
    except ZooKeeperNotInstalled as error:
        if os.environ.get("REQUIRE_ZOOKEEPER"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make(folder, "zookeeper")
    make(folder, "node")
    make(folder, "elsewhere", "zookeeper.internal")
    return folder


@pytest.fixture(scope="module")
def server(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running(tmp_path_factory.mktemp("zk"), certs, "zookeeper", asks=False) as found:
        yield found


def only_ca(certs: Path) -> Certificates:
    return Certificates(TlsConfig(ca=f"{certs}/ca.pem"))


@contextlib.asynccontextmanager
async def started(url: str, tls: Certificates | None, **how: int) -> AsyncIterator[MetadataStore]:
    store = open_store(url, tls=tls, **how)  # type: ignore[arg-type]
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def why_not(url: str, tls: Certificates | None) -> str:
    store = open_store(url, tls=tls)
    assert isinstance(store, ZooKeeperStore)
    store._connect_timeout_ms = 2_000
    with pytest.raises(MetadataUnavailable) as raised:
        await store.start()
    return str(raised.value)


async def test_records_watches_and_sessions(server: ZooKeeperServer, certs: Path) -> None:
    url = server.new_url()
    async with started(url, only_ca(certs)) as one, started(url, certificates(certs)) as two:
        assert one.url == url
        assert one.session_state is SessionState.CONNECTED
        changed = asyncio.Event()
        two.watch("/a/b", changed.set)
        await one.create("/a/b", b"x" * 100_000)
        async with asyncio.timeout(10):
            await changed.wait()
        assert (await two.get("/a/b")).value == b"x" * 100_000
        await one.create("/here", b"", ephemeral=True)
        await one.close()
        async with asyncio.timeout(10):
            while "here" in await two.children("/"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_many_answers_at_once_are_not_left_in_the_tls_layer(
    server: ZooKeeperServer, certs: Path
) -> None:
    """kazoo alone would wait for the socket, a third of the session timeout long."""
    async with started(server.new_url(), only_ca(certs), session_timeout_ms=40_000) as store:
        await store.create("/a", b"y" * 5_000)
        began = time.monotonic()
        for _ in range(5):
            found = await asyncio.gather(*(store.get("/a") for _ in range(200)))
            assert {one.value for one in found} == {b"y" * 5_000}
        assert time.monotonic() - began < 12


def test_what_was_decrypted_already_counts_as_readable(certs: Path, tmp_path: Path) -> None:
    """Two answers in one record of TLS: after the first, the socket itself has no more."""
    handler = TlsHandler(10_000, lambda: client_context(ca=f"{certs}/ca.pem"))
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(f"{certs}/zookeeper.pem", f"{certs}/zookeeper.key")

    async def speak() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"onetwo")
            await reader.read()
            writer.close()

        listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_side)
        port = listening.sockets[0].getsockname()[1]

        def ask() -> None:
            sock = handler.create_connection(("127.0.0.1", port), hostname="127.0.0.1", timeout=5.0)
            assert sock.recv(3) == b"one"
            began = time.monotonic()
            assert handler.select([sock], [], [], 5.0)[0] == [sock]
            assert time.monotonic() - began < 1
            assert sock.recv(3) == b"two"
            assert handler.select([sock], [], [], 0.1)[0] == []
            sock.close()

        await asyncio.to_thread(ask)
        listening.close()

    asyncio.run(speak())


@pytest.mark.long
async def test_a_ca_that_is_not_believed(
    server: ZooKeeperServer, certs: Path, tmp_path: Path
) -> None:
    make(tmp_path / "other", "node")
    assert "is not trusted here" in await why_not(server.new_url(), only_ca(tmp_path / "other"))
    assert "is not trusted here" in await why_not(server.new_url(), None), "the machine's"


async def test_another_name(certs: Path, tmp_path: Path) -> None:
    with running(tmp_path, certs, "elsewhere", asks=False) as server:
        assert "certificate is for other names" in await why_not(server.new_url(), only_ca(certs))


@pytest.mark.long
async def test_a_server_that_asks_for_certificates(certs: Path, tmp_path: Path) -> None:
    with running(tmp_path, certs, "zookeeper", asks=True) as server:
        async with started(server.new_url(), certificates(certs)) as store:
            await store.create("/a", b"1")
        said = await why_not(server.new_url(), only_ca(certs))
        assert "certificate" in said
        assert "give certificate and key" in said


async def test_tls_where_there_is_none_and_the_reverse(
    zookeeper: ZooKeeperServer, server: ZooKeeperServer, certs: Path
) -> None:
    said = await why_not(zookeeper.new_url().replace("zk://", "zks://"), only_ca(certs))
    assert "does that port speak TLS" in said
    assert "zk://" in said
    said = await why_not(server.new_url().replace("zks://", "zk://"), None)
    assert "does that port speak TLS: zks://" in said


@pytest.mark.long
def test_octavo_zookeeper_with_tls(tmp_path: Path) -> None:
    port = free_port()
    command = [*OCTAVO, "zookeeper", "--tls", "--data", str(tmp_path / "zk"), "--port", str(port)]
    url = f"zks://127.0.0.1:{port}/octavo"
    ca = tmp_path / "zk" / "tls" / "ca.pem"
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment())
    try:
        until(lambda: url in (tmp_path / "said").read_text(), "it is ready", 40.0)
        assert (tmp_path / "zk" / "tls" / "zookeeper-store.pem").stat().st_mode & 0o777 == 0o600
        listed = subprocess.run(
            [*OCTAVO, "ledger", "list", "--metadata", url],
            env={**environment(), "OCTAVO_TLS_CA": str(ca)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert listed.returncode == 0, listed.stderr
    finally:
        process.terminate()
        process.wait(20)
