"""An encrypted namespace in a cluster of real processes: at no moment is a message on a disk."""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path

import pytest

from octavo import Client
from octavo.client.errors import ApiError
from tests.support.processes.canaries import Watcher, said
from tests.support.processes.standalone import octavo, standalone, until

CANARY = b"canary-5d1e0c77"


def keys_of(path: Path) -> list[bytes]:
    return [base64.b64decode(line.split()[2]) for line in lines_of(path)]


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


pytestmark = pytest.mark.long


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
