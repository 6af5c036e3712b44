"""Keeps faults survivable: which copies are lost for good, and how many may be lost.

An acked entry survives the loss of Qa − 1 copies. Bit rot and a wiped disk lose copies, and their
losses add up: together they hit fewer bookies than the smallest ack quorum. In the profile `beyond`
more may be lost; then nothing has to survive, but no bookie may lie.
"""

from __future__ import annotations

import random

from octavo.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    SUFFIX,
    BlockKind,
    decode_block_header,
    file_id_of,
)
from tests.sim.cluster import Cluster, SimBookie
from tests.sim.inode import SECTOR
from tests.sim.ledger_audit import LedgerHistory


class Atlas:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._damaged = cluster.audit.damaged

    def is_whole(self, bookie: SimBookie) -> bool:
        return bookie.name not in self._damaged and bookie.was_ready

    def may_damage(self, bookie: SimBookie) -> bool:
        if not bookie.was_ready or self._damaged.get(bookie.name, "rotten") != "rotten":
            return False
        others = sum(name != bookie.name for name in self._damaged)
        return others < self._cluster.options.damage_max

    def damaged(self, bookie: SimBookie, how: str) -> None:
        self._damaged[bookie.name] = how
        if how == "wiped":
            self._cluster.audit.disk_lost(bookie.name)
        elif how == "rotten":
            self._cluster.audit.rotten.add(bookie.name)

    def rot_is_gone(self, bookie: SimBookie) -> None:
        self._cluster.audit.rotten.discard(bookie.name)

    def whole_again(self, bookie: SimBookie) -> None:
        self._damaged.pop(bookie.name, None)

    def rot_at(
        self, bookie: SimBookie, path: str, rng: random.Random
    ) -> tuple[str, int, int] | None:
        """Choose synced data to change: (file, first byte, end): one byte, or most of a sector.

        The last group of a journal is left alone. Nothing was written after it, so damage there
        looks like a write that a power failure tore, and no journal can tell the two apart.
        """
        found = [
            (name, len(inode.durable))
            for name, inode in sorted(bookie.disk.names.items())
            if path in name and inode.durable
        ]
        if not found:
            return None
        name, end = rng.choice(found)
        if name.endswith(SUFFIX):
            end = min(end, _last_group(name, bytes(bookie.disk.names[name].durable), end))
        at = rng.randrange(end)
        if rng.random() < 0.5:
            return name, at, at + 1
        start = at // SECTOR * SECTOR
        return name, start, min(start + SECTOR, end)

    def must_close(self, history: LedgerHistory) -> bool:
        """Whether a recovery has all it needs: answers from each write set, and room to write back.

        A bookie that refused to start is gone for good, and a bookie that lost its part of this
        ledger answers "unknown". Another live bookie takes its place if there is one.
        """
        lost_by = self._cluster.audit.lost
        up = [
            b.name
            for b in self._cluster.bookies.values()
            if b.refused is None and history.ledger_id not in lost_by.get(b.name, ())
        ]
        ensemble, quorum = history.record.fragments[-1].bookies, history.quorum
        live = [p for p, bookie in enumerate(ensemble) if bookie in up]
        spares = len(set(up) - set(ensemble))
        lost = [p for p in range(len(ensemble)) if p not in live]
        return quorum.covers(live) and quorum.writable([*live, *lost[:spares]])


def _last_group(path: str, data: bytes, end: int) -> int:
    """Return where the last group of a journal file begins, or `end` when the file was sealed after
    it."""
    file_id = file_id_of(path.rpartition("/")[2]) or 0
    last = at = FILE_HEADER_BYTES
    while (block := decode_block_header(data, at, file_id, at)) is not None:
        if block.kind is BlockKind.END:
            return end
        last, at = at, at + BLOCK_HEADER_BYTES + block.body_bytes
    return last
