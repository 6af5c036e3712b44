"""One secret per cluster, whichever process asks first, in every metadata store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.metadata.secret import SECRET_PATH, ClusterSecret, SecretRecord, cluster_secret
from octavo.metadata.store import BadRecord
from octavo.metadata.topic_records import encode_record
from tests.support.metadata_trees import Tree


async def test_all_who_start_first_get_the_same_secret(tree: Tree) -> None:
    stores = [await tree.open() for _ in range(4)]
    keys = [s.key("brokers") for s in await asyncio.gather(*map(cluster_secret, stores))]
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32
    later = await cluster_secret(await tree.open())
    assert later.key("brokers") == keys[0]


async def test_each_use_has_a_key_of_its_own_and_each_cluster_a_secret(tree: Tree) -> None:
    secret = await cluster_secret(await tree.open())
    assert secret.key("brokers") != secret.key("ledgers")
    assert secret.ledger_password == secret.key("ledgers").hex().encode()
    assert ClusterSecret(bytes(32)).key("ledgers") != secret.key("ledgers")
    assert ClusterSecret(bytes(32)).ledger_password.decode() == (
        # HMAC-SHA256 of "octavo ledgers" under 32 zero bytes: Apache's clients are configured with
        # it, so it never changes.
        "c02cf6c26637cd0397981e9dc924cc781d83d12859ac2016d06b7779c24cae22"
    )


@pytest.mark.parametrize("text", ["", "00", "G" * 64, "ab" * 32 + "\n"])
async def test_a_record_that_holds_no_secret_is_refused_and_not_shown(
    tree: Tree, text: Any
) -> None:
    store = await tree.open()
    await store.create(SECRET_PATH, encode_record(SecretRecord(text)))
    with pytest.raises(BadRecord, match="64 hexadecimal digits") as caught:
        await cluster_secret(store)
    assert not text.strip() or text not in str(caught.value)


def test_nothing_shows_the_secret() -> None:
    assert "ab" * 32 not in repr(SecretRecord("ab" * 32))
    assert (b"\xab" * 32).hex() not in repr(ClusterSecret(b"\xab" * 32))
