"""An old copy of the metadata is put back: acked messages were lost silently, and ids given
twice."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from octavo import Client
from octavo.standalone.ports import free_port
from tests.support.processes.standalone import OCTAVO, environment, octavo, standalone
from tests.support.zookeeper_server import running_zookeeper

pytestmark = pytest.mark.long

QUICK = ("--session-timeout-ms=2000",)
ACCEPTED = "--set=bookie.accept_older_metadata=true"


def publish(urls: list[str], topic: str, *texts: str) -> None:
    with Client(urls) as client:
        client.create_topic(topic, partitions=1)
        for text in texts:
            client.publish(topic, text)


def read(urls: list[str], topic: str) -> list[str]:
    with Client(urls) as client:
        return [message.text() for message in client.messages(topic)]


def refused(folder: Path, *arguments: str) -> str:
    command = [*OCTAVO, "standalone", "--data", str(folder), "--port-base", "0", *arguments]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert found.returncode == 1, found.stdout
    assert "Traceback" not in found.stderr
    return " ".join(found.stderr.split())


def ids(folder: Path, *metadata: str) -> list[int]:
    where = metadata or ("--data", str(folder))
    found = octavo("ledger", "list", *where, "--json")
    assert found.returncode == 0, found.stderr
    return [one["ledger_id"] for one in json.loads(found.stdout)]


@pytest.mark.timeout(900)
def test_a_copied_file_is_refused_and_may_be_accepted(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    with standalone(folder, *QUICK) as running:
        publish(running.cluster.urls, "before", "a", "b")
        running.stop()
    copy.mkdir()
    names = [path.name for path in folder.glob("metadata.db*")]
    for name in names:
        shutil.copy(folder / name, copy / name)
    with standalone(folder, *QUICK) as running:
        publish(running.cluster.urls, "after", "c")
        given = ids(folder)
        running.stop()
    newest = tmp_path / "newest"
    newest.mkdir()
    for path in folder.glob("metadata.db*"):
        shutil.move(path, newest / path.name)
    for name in names:
        shutil.copy(copy / name, folder / name)

    said = refused(folder, *QUICK)
    assert "is an older copy" in said
    assert "restore the newest metadata" in said
    assert "accept_older_metadata=true" in said or "--accept-older-metadata" in said

    for path in folder.glob("metadata.db*"):
        path.unlink()
    for path in newest.iterdir():
        shutil.copy(path, folder / path.name)
    with standalone(folder, *QUICK) as running:
        assert read(running.cluster.urls, "after") == ["c"]
        given += ids(folder)
        running.stop()

    for path in folder.glob("metadata.db*"):
        path.unlink()
    for name in names:
        shutil.copy(copy / name, folder / name)
    with standalone(folder, *QUICK, ACCEPTED) as running:
        assert read(running.cluster.urls, "before") == ["a", "b"]
        publish(running.cluster.urls, "later", "d")
        assert read(running.cluster.urls, "later") == ["d"]
        new = set(ids(folder)) - set(given)
        assert new, "there are ledgers with ids that none had before"
        assert min(new) > max(given)
        running.stop()
    with standalone(folder, *QUICK) as running:
        assert read(running.cluster.urls, "later") == ["d"]
        running.stop()


@pytest.mark.zookeeper
@pytest.mark.timeout(900)
def test_zookeepers_folder_put_back_is_refused(tmp_path: Path) -> None:
    data, copy, folder = tmp_path / "zookeeper", tmp_path / "copy", tmp_path / "data"
    data.mkdir()
    port = free_port()
    with running_zookeeper(data, port) as server:
        metadata = f"--metadata=zk://127.0.0.1:{server.port}/octavo"
        with standalone(folder, *QUICK, metadata) as running:
            publish(running.cluster.urls, "before", "a")
            running.stop()
    shutil.copytree(data, copy)
    with running_zookeeper(data, port) as server:
        metadata = f"--metadata=zk://127.0.0.1:{server.port}/octavo"
        with standalone(folder, *QUICK, metadata) as running:
            publish(running.cluster.urls, "after", "b")
            running.stop()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    with running_zookeeper(data, port) as server:
        metadata = f"--metadata=zk://127.0.0.1:{server.port}/octavo"
        assert "is an older copy" in refused(folder, *QUICK, metadata)
        with standalone(folder, *QUICK, metadata, ACCEPTED) as running:
            assert read(running.cluster.urls, "before") == ["a"]
            publish(running.cluster.urls, "later", "c")
            assert read(running.cluster.urls, "later") == ["c"]
            running.stop()
