"""`octavo standalone --tls` with real processes: the guide of docs/security.md, word for word."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from octavo import Client
from tests.support.certificates import renew
from tests.support.processes.standalone import OCTAVO, environment, standalone, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def guide() -> list[str]:
    text = PAGE.read_text().split("## A cluster on one machine", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[1].splitlines()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide needs curl")
def test_the_guide_works_when_pasted(tmp_path: Path) -> None:
    with standalone(tmp_path / "octavo-data", "--tls") as one:
        address = one.cluster.urls[0].removeprefix("https://").replace("127.0.0.1", "localhost")
        said = []
        for line in guide():
            command = line.replace("localhost:8080", address)
            if command.startswith("octavo "):
                command = shlex.join(OCTAVO) + command.removeprefix("octavo")
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                env=environment(),
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            said.append(done.stdout)
        assert "hello" in said[2]
        assert json.loads(said[3])["brokers"]
        assert json.loads(said[4])["code"] == "tls-required"


@pytest.mark.long
def test_mutual_with_start_tls_through_a_kill_and_new_certificates(tmp_path: Path) -> None:
    how = ("--tls", "--set", "tls.mutual=true", "--set", "tls.start_tls=true")
    with standalone(tmp_path / "data", *how, "--set", "tls.reload_ms=200") as one:
        folder = tmp_path / "data" / "tls"
        with Client(
            one.cluster.urls,
            ca_file=f"{folder}/ca.pem",
            certificate=f"{folder}/node.pem",
            key=f"{folder}/node.key",
        ) as client:
            client.create_topic("t", partitions=2)
            for number in range(20):
                client.publish("t", b"%d" % number, partition=number % 2)
            renew(folder)
            broker = Path(next(m.log for m in one.cluster.members if m.kind == "broker"))
            until(lambda: "certificates_loaded" in broker.read_text(), "the new ones are loaded")
            one.kill("broker-1")
            for number in range(20, 40):
                client.publish("t", b"%d" % number, partition=number % 2)
            read = [m.value for n in range(2) for m in client.messages("t", partition=n)]
        assert sorted(int(value or b"") for value in read) == list(range(40))
