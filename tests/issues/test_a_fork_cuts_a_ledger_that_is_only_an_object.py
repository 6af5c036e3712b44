"""A fork that ends within a ledger was made though the bookies had that ledger no more.

Objects are not shared, so such a fork is refused (forks.py); but of the ledger that is cut the list
did not say any more where it lies. Seed 5247 of profile `topic`.
"""

from __future__ import annotations

from octavo.broker.log.ledger_list import Cut, ForkPoint, LedgerList
from octavo.metadata.offloads import DROPPED, is_only_copy
from octavo.metadata.topics import OffloadRecord, PartitionLedger


def test_of_what_is_cut_it_is_known_where_it_lies() -> None:
    gone = OffloadRecord("u", DROPPED, "file:///o")
    source = LedgerList((PartitionLedger(7, 0, count=5, offload=gone),))
    for at, cut in ((3, Cut(7, 2, 10, 1)), (5, None)):
        (one,) = source.forked(ForkPoint(at, cut), 9).segments
        assert is_only_copy(one.offload), at
