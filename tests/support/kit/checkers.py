"""Every check of a history: compares the users' answers with the promises.

    problems = check_topics(history) + check_ledgers(history)
    assert not problems, report(problems)

An operation with an unknown outcome (`info`: a timeout, a crash, a broken connection) is neither
lost when it is absent nor a phantom when it is there. Everything runs in O(n log n): offsets, entry
ids and versions give the order. Registers with compare-and-set need a search; see
linearizability.py.
"""

from __future__ import annotations

from collections import defaultdict

from tests.support.kit.cursor_checks import CursorChecks
from tests.support.kit.history import Call, History, Operation
from tests.support.kit.ledger_checks import check_ledger
from tests.support.kit.log_checks import LogChecks
from tests.support.kit.problems import Kind, Problem, kinds, report
from tests.support.kit.reader_checks import ReaderChecks

__all__ = ["Kind", "Problem", "check", "check_ledgers", "check_topics", "kinds", "report"]

LEDGER_CALLS = (Call.ADD, Call.READ, Call.LAC, Call.FENCE, Call.CLOSE, Call.REPLICA)


def check_topics(
    history: History,
    *,
    order: str = "producer",
    at_least_once: frozenset[str] = frozenset(),
    dense: bool = False,
) -> list[Problem]:
    """Check sends, reads and subscriptions. `order`: the scope in which a producer's messages
    keep their order, "producer" (each partition) or "key". `at_least_once`: producers whose
    retries may store a message twice. `dense`: offsets have no holes."""
    checks = LogChecks(history, order=order, at_least_once=at_least_once)
    return [
        *checks.problems(),
        *ReaderChecks(history, checks, dense=dense).problems(),
        *CursorChecks(history).problems(),
    ]


def check_ledgers(history: History, *, acks_in_order: bool = False) -> list[Problem]:
    """Check each ledger's adds, reads, fences and ends. `acks_in_order`: the history was
    recorded where acks are given, not by tasks that acks wake in any order."""
    ledgers: dict[str, list[Operation]] = {}
    drains: defaultdict[str, list[Operation]] = defaultdict(list)
    for one in history:
        if one.call in LEDGER_CALLS:
            ledgers.setdefault(one.log, []).append(one)
        elif one.call is Call.DRAIN:
            drains[one.log].append(one)
    return [
        problem
        for log, operations in ledgers.items()
        for problem in check_ledger(log, operations + drains[log], acks_in_order=acks_in_order)
    ]


def check(history: History) -> list[Problem]:
    return check_topics(history) + check_ledgers(history)
