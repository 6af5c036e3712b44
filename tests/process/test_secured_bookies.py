"""Bookies of real processes in a cluster that is secured while it runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from octavo.metadata.opening import open_store
from octavo.protocol.codes import Code
from octavo.security.policy import PolicyStore, secured
from tests.support.processes.standalone import octavo, standalone, until
from tests.support.raw_bookie import RawClient


async def change_policy(url: str) -> None:
    store = open_store(url)
    await store.start()
    try:
        await PolicyStore(store).change(lambda record: secured(record, "user:admin"))
    finally:
        await store.close()


async def read_as_stranger(port: int, ledger: int) -> object:
    client = await RawClient.connect_to(port)
    try:
        return await client.read(ledger, 0)
    except (ConnectionError, EOFError) as error:
        return error
    finally:
        client.close()


@pytest.mark.long
def test_securing_a_running_cluster_shuts_strangers_out_and_nobody_else(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as one:
        data = ("--data", str(one.folder))
        assert octavo("topic", "create", "t", *data).returncode == 0
        assert octavo("publish", "t", "before", *data).returncode == 0
        listed = octavo("ledger", "list", *data, "--json")
        assert listed.returncode == 0, listed.stderr
        ledger = json.loads(listed.stdout)[0]["ledger_id"]
        bookies = [member for member in one.cluster.members if member.kind == "bookie"]

        def answers() -> list[object]:
            return [asyncio.run(read_as_stranger(one.port, ledger)) for one in bookies]

        assert any(isinstance(found, bytes) for found in answers())
        asyncio.run(change_policy(one.cluster.metadata_url))
        until(lambda: answers() == [Code.UNAUTHORIZED] * 3, "strangers are refused", 10.0)
        # Processes with access to the metadata are nodes, and so are brokers: their work continues.
        read = octavo("ledger", "read", str(ledger), *data)
        assert read.returncode == 0, read.stderr
        recovered = octavo("ledger", "recover", str(ledger), "--force", *data)
        assert recovered.returncode == 0, recovered.stderr
        logs = {member.name: Path(member.log).read_text() for member in one.cluster.members}
        assert all("caller_refused" in logs[member.name] for member in bookies)
        assert not any("bookie_doubts_us" in log for log in logs.values())
