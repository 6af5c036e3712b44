"""A fork that was cut within a batch opened it, and its source lost the rest of the batch.

A broker keeps opened batches by ledger and entry, and the fork's part of the last one has both in
common with the whole. Whoever came second on the same broker was given what the first had opened:
a reader of the source an internal error, in place of the messages behind the cut.
"""

from __future__ import annotations

from pathlib import Path

from octavo.protocol.records import Record, build_batch
from tests.cluster.test_forks import BATCH, FORK, ONE, forked
from tests.support.cluster import running_cluster


async def test_the_source_is_whole_when_the_fork_was_read_first(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=1) as cluster:
        assert (await cluster.api.put(ONE)).status == 201
        records = [Record(None, b"%d" % n) for n in range(300)]
        assert (
            await cluster.api.post(ONE + "/messages", build_batch(records), BATCH)
        ).status == 200
        await forked(cluster, ONE, "fork", 3)
        for path, count in ((FORK, 3), (ONE, 300), (FORK, 3)):
            answer = await cluster.api.get(path + "/messages?limit=999")
            assert answer.status == 200, answer
            values = [one["value"] for one in answer.json()["messages"]]
            assert values == list(range(count)), path
