"""Users as one process changes them and another sees them, in every metadata store."""

from __future__ import annotations

import asyncio

from octavo.security.identity.users import RECENT, UserRecord, Users, UserStore, scram_records
from tests.support.identities import NOW_S, PASSWORD, RNG
from tests.support.metadata_trees import Eventually, Tree

KEYS = scram_records(PASSWORD, RNG)


async def test_another_process_sees_each_change(tree: Tree, eventually: Eventually) -> None:
    here, there = UserStore(await tree.open()), Users(await tree.open())
    await there.start()
    try:
        await here.create("a/b", KEYS, ["staff"])
        await eventually(lambda: there.get("a/b").has_password)
        await here.set_disabled("a/b", True)
        await eventually(lambda: there.get("a/b").disabled)
        await here.delete("a/b", NOW_S)
        await eventually(
            lambda: there.get("a/b") == UserRecord(deleted=True, not_before_s=NOW_S + 1)
        )
        for number in range(2 * RECENT):
            await here.create(f"u{number}")
            await here.set_groups(f"u{number}", ["g"])
        await eventually(lambda: all(there.get(f"u{n}").groups for n in range(2 * RECENT)))
    finally:
        await there.close()


async def test_who_changes_at_once_loses_nothing(tree: Tree) -> None:
    first, second = UserStore(await tree.open()), UserStore(await tree.open())
    await first.create("alice")
    await asyncio.gather(
        first.set_groups("alice", ["a"]),
        second.set_disabled("alice", True),
        first.revoke_tokens("alice", NOW_S),
        second.set_password("alice", KEYS),
        *(one.create(f"u{number}") for number, one in enumerate([first, second] * 3)),
    )
    assert await second.get("alice") == UserRecord(*KEYS, ("a",), True, NOW_S + 1)
    assert len(await first.all()) == 7


async def test_what_changes_while_a_process_is_cut_off_is_seen_afterwards(
    tree: Tree, eventually: Eventually
) -> None:
    away = await tree.open(impatient=True)
    here, there = UserStore(await tree.open()), Users(away)
    await here.create("alice", KEYS)
    await there.start()
    try:
        async with tree.cut(away):
            await here.set_disabled("alice", True)
            assert there.get("alice").has_password
        await eventually(lambda: there.get("alice").disabled)
    finally:
        await there.close()
