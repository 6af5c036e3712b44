"""The users' container as the test sees it: its progress, and its result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testcontainers.core.container import DockerContainer

from tests.containers.cluster import Cluster, until
from tests.containers.images import OCTAVO, ROOT

FINISH_S = 300


@dataclass(frozen=True)
class Verdict:
    """`wrong`: every broken promise, in words. Waits in seconds, from call to ack."""

    wrong: list[str]
    sent: int
    stored: int
    retries: int
    retried: list[str]
    wait_p50: float
    wait_p99: float
    wait_max: float
    silence_max: float

    def __str__(self) -> str:
        return (
            f"{self.sent} sent, {self.stored} stored, {self.retries} calls repeated by the client; "
            f"waited p50 {self.wait_p50:.3f} s, p99 {self.wait_p99:.3f} s, "
            f"at most {self.wait_max:.3f} s; a partition acked nothing for {self.silence_max:.3f} s"
        )


class Users:
    def __init__(self, topic: str, notes: Path, container: DockerContainer) -> None:
        self.topic = topic
        self._notes = notes
        self._container = container

    def more(self, count: int) -> None:
        before = self._progress()

        def enough() -> bool:
            now = self._progress()
            return all(now[one] >= before[one] + count for one in ("acked", "consumed"))

        until(enough, f"{count} more messages published and consumed")

    def finish(self) -> Verdict:
        wrapped = self._container.get_wrapped_container()
        wrapped.kill("SIGTERM")
        status = wrapped.wait(timeout=FINISH_S)["StatusCode"]
        assert status == 0, wrapped.logs().decode()[-4000:]
        return Verdict(**self._read("verdict.json"))

    def judge(self) -> None:
        verdict = self.finish()
        print(verdict)
        assert not verdict.wrong, "\n".join(verdict.wrong[:20])

    def _progress(self) -> dict[str, Any]:
        until(self._has_begun, "the users have begun")
        return self._read("progress.json")

    def _has_begun(self) -> bool:
        wrapped = self._container.get_wrapped_container()
        wrapped.reload()
        assert wrapped.status == "running", wrapped.logs().decode()[-4000:]
        return (self._notes / "progress.json").exists()

    def _read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._notes / name).read_text())
        return found


@contextlib.contextmanager
def users_of(cluster: Cluster, topic: str, folder: Path, **options: int) -> Iterator[Users]:
    notes = folder / "notes"
    notes.mkdir()
    notes.chmod(0o777)  # They are not root.
    how = {"topic": topic, "brokers": ",".join(cluster.broker_urls), "notes": "/notes", **options}
    arguments = [part for name, text in how.items() for part in (f"--{name}", str(text))]
    container = (
        cluster.container(f"users-{topic}", OCTAVO)
        .with_volume_mapping(ROOT / "tests", "/checks/tests", "ro")
        .with_volume_mapping(notes, "/notes", "rw")
        .with_env("PYTHONPATH", "/checks")
        .with_env("PYTHONDONTWRITEBYTECODE", "1")
    )
    container.with_kwargs(**container._kwargs, entrypoint=["python3"])
    container.with_command(["-m", "tests.containers.load", *arguments])
    try:
        container.start()
        yield Users(topic, notes, container)
    finally:
        container.stop()
