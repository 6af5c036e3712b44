"""Worlds of a ledger: their nodes, and the condition of their end."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.metadata.ledgers import LedgerState
from tests.model.ledger_checks import check
from tests.model.ledger_clients import Recoverer, Writer
from tests.model.ledger_nodes import RECORD, Bookie, Store, new_record
from tests.model.world import Nodes, World


def is_closed(nodes: Nodes) -> bool:
    recoverers = [node for node in nodes.values() if isinstance(node, Recoverer)]
    closed = nodes[RECORD].value.state is LedgerState.CLOSED
    return closed and all(node.over() for node in recoverers)


def ledger_world(
    shape: tuple[int, int, int],
    bookies: str,
    *,
    recoverers: int = 1,
    entries: int = 1,
    in_flight: int = 1,
    closes: bool = False,
    faults: int = 0,
    loses: bool | None = None,
    crashes: bool = False,
    alike: Sequence[Sequence[str]] = (),
    bookie: type[Bookie] = Bookie,
) -> World:
    """`faults`: how many answers may be missed (`loses`) or bookies crash (`crashes`), together."""
    record = new_record(shape)
    if loses is None:
        loses = faults > 0
    writer = Writer(
        record, bookies, entries=entries, in_flight=in_flight, closes=closes, loses=loses
    )
    clients = [Recoverer(f"r{number}", bookies, loses=loses) for number in range(recoverers)]
    disks = [bookie(name, crashes=crashes) for name in bookies]
    nodes = [Store(record), writer, *clients, *disks]
    return World(nodes, check, faults=faults, ended=is_closed, alike=alike)
