"""Finding Java and ZooKeeper's code, and the messages when they are missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.metadata import zookeeper_server
from octavo.metadata.zookeeper_server import (
    ZooKeeperNotInstalled,
    find_class_path,
    find_java,
    server_command,
    write_config,
)


@pytest.fixture
def no_debian(monkeypatch, tmp_path):
    monkeypatch.setattr(zookeeper_server, "_DEBIAN_JAR", tmp_path / "absent.jar")


def add_pyspark(folder, monkeypatch, *jars: str) -> str:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # imported by another test
    package = folder / "pyspark"
    (package / "jars").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported, only found')")
    for jar in jars:
        (package / "jars" / jar).write_bytes(b"")
    monkeypatch.syspath_prepend(str(folder))
    return f"{package}/jars/*"


def test_java_is_found_by_java_home_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)


def test_missing_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ZooKeeperNotInstalled, match="default-jre-headless"):
        find_java()


def test_the_jars_of_pyspark_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = add_pyspark(tmp_path, monkeypatch, "zookeeper-3.9.5.jar", "zookeeper-jute-3.9.5.jar")
    assert find_class_path() == expected


def test_a_pyspark_without_zookeeper_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_debian: Any
) -> None:
    add_pyspark(tmp_path, monkeypatch, "zookeeper-jute-3.9.5.jar")
    with pytest.raises(ZooKeeperNotInstalled, match="apt-get install zookeeper"):
        find_class_path()


def test_a_configuration_is_written_and_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_pyspark(tmp_path / "lib", monkeypatch, "zookeeper-3.9.5.jar")
    monkeypatch.setattr(zookeeper_server, "find_java", lambda: "/opt/java")
    config = write_config(str(tmp_path / "zk"), port=2999, tick_ms=123)
    text = (tmp_path / "zk" / "zoo.cfg").read_text()
    assert config == str(tmp_path / "zk" / "zoo.cfg")
    for line in ("clientPort=2999", "tickTime=123", f"dataDir={tmp_path}/zk/data"):
        assert line in text.splitlines()
    assert "maxSessionTimeout=40000" in text.splitlines(), "20 ticks would be less than a session"
    assert (tmp_path / "zk" / "data").is_dir()
    command = server_command(config)
    assert command[0] == "/opt/java"
    assert command[-1] == config
    assert "-Dzookeeper.forceSync=no" not in command
    assert "-Dzookeeper.forceSync=no" in server_command(config, durable=False)
