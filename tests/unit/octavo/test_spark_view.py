"""A partition's first and last offset: Spark's view of the record agrees with its owner's on
the same random history."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log.ledger_list import Contents, LedgerList
from octavo.broker.log.retention import RetentionPolicy
from octavo.metadata.topics import PartitionLedger, PartitionRecord
from octavo.spark.cluster import Cluster
from octavo.spark.splits import View, checked_range, pieces

_SOON = st.tuples(st.sampled_from(["roll over", "write", "trim", "truncate"]), st.integers(0, 9))


def view_of(ledger_list: LedgerList, confirmed: int) -> View:
    """Return Spark's view when bookies know `confirmed` messages of the open ledger."""

    async def end_of(link: PartitionLedger) -> int:
        return link.base_offset + confirmed

    record = PartitionRecord(ledger_list.segments, trimmed_offset=ledger_list.trimmed_to)
    fake = SimpleNamespace(_end_of=end_of, _read_from="bookies")
    return asyncio.run(Cluster.view_of(cast(Any, fake), "public/t", 0, record))


@given(st.lists(_SOON, max_size=12), st.booleans(), st.data())
def test_the_view_and_the_owner_agree(
    history: list[tuple[str, int]], is_closed: bool, data: st.DataObject
) -> None:
    ledger_list, written, ledger_id = LedgerList().appending(0), 0, 0
    for what, number in history:
        match what:
            case "roll over":
                ledger_list = ledger_list.closing_last(
                    ledger_list.segments[-1].ledger_id, Contents(written, written, 5, 9), 7
                )
                written, ledger_id = 0, ledger_id + 1
                ledger_list = ledger_list.appending(ledger_id)
            case "write":
                written += number
            case "trim":
                ledger_list = RetentionPolicy(None, number).trimming(ledger_list, 100)
            case _:
                last = ledger_list.segments[-1].base_offset + written
                ledger_list = ledger_list.truncating(max(0, last - number))
    end = ledger_list.segments[-1].base_offset + written
    confirmed = data.draw(st.integers(0, written), label="what bookies tell of the open ledger")
    if is_closed:
        ledger_list = ledger_list.closing_last(
            ledger_list.segments[-1].ledger_id, Contents(written, written, 5, 9), 7
        )
        assert ledger_list.end_offset == end
    view = view_of(ledger_list, confirmed)
    assert view.earliest == ledger_list.earliest_offset
    assert view.earliest <= view.end <= end, "what is trimmed was confirmed"
    if is_closed or confirmed == written:
        assert view.end == end
    assert checked_range(view, view.earliest, view.end, fail=True) == (view.earliest, view.end)
    rows = [o for one in pieces(view, view.earliest, view.end) for o in range(one.start, one.end)]
    assert rows == list(range(view.earliest, view.end))


def test_a_truncation_at_an_end_that_bookies_do_not_tell_yet_ends_no_query() -> None:
    """The last entry's confirmation travels with the next entry, so the view ended before it
    began."""
    ledger_list = LedgerList().appending(1).truncating(10)
    view = view_of(ledger_list, confirmed=9)
    assert (view.earliest, view.end) == (10, 10)
