"""Digest authentication: only the cluster's credentials open its records."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo import exceptions as zk
from kazoo.client import KazooClient

from octavo import Client
from octavo.credentials import VARIABLE
from octavo.metadata.opening import open_store
from octavo.metadata.store import BadMetadataCredentials, MetadataUnusable, Record, SessionState
from tests.support.processes.standalone import OCTAVO, environment, octavo, standalone, until
from tests.support.zookeeper_server import ZooKeeperServer

pytestmark = [pytest.mark.zookeeper]
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
