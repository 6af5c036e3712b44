"""Putting a copy of the simulated metadata back restores all of it, and nothing later."""

from __future__ import annotations

import pytest

from octavo.metadata.store import Record, RecordNotFound
from tests.sim.metadata_tree import Tree

BY = ("w1", 1)


def made(tree: Tree, path: str, *, session: int | None = None, sequence: bool = False) -> str:
    return tree.create(path, b"one", session=session, sequence=sequence, by=BY)


def test_what_was_changed_made_and_deleted_is_as_it_was() -> None:
    tree = Tree(lambda: 0.0, lambda *_: None)
    made(tree, "/a/changed")
    made(tree, "/a/deleted")
    made(tree, "/a/of-a-session", session=7)
    first = made(tree, "/ids/n-", sequence=True)
    copy, before = tree.copy(), tree.seq
    tree.put("/a/changed", b"two", 0, by=BY)
    tree.delete("/a/deleted", 0, by=BY)
    made(tree, "/a/later/below")
    second = made(tree, "/ids/n-", sequence=True)
    tree.put_back(copy)
    assert tree.records() == {path: record for path, (record, _) in copy.items()}
    assert tree.get("/a/changed", tree.seq) == Record(b"one", 0)
    assert tree.children("/a", tree.seq) == ["changed", "deleted"]
    assert tree.children("/a", before) == ["changed", "deleted", "of-a-session"]
    with pytest.raises(RecordNotFound):
        tree.get("/a/later/below", tree.seq)
    assert made(tree, "/ids/n-", sequence=True) == second, "numbers are given a second time"
    assert first != second


def test_newer_ones_come_back_as_well() -> None:
    tree = Tree(lambda: 0.0, lambda *_: None)
    made(tree, "/a")
    older = tree.copy()
    made(tree, "/b")
    newest = tree.copy()
    tree.put_back(older)
    assert list(tree.records()) == ["/a"]
    tree.put_back(newest)
    assert sorted(tree.records()) == ["/a", "/b"]
    tree.put("/b", b"three", 0, by=BY)
