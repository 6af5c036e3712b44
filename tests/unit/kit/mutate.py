"""Small mistakes planted in the checkers' sources, one at a time. A mutant is loaded under
another name with the modules that import it; `history` and `problems` stay the same, so that
results can be compared."""

from __future__ import annotations

import ast
import copy
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.kit import history

KIT = Path(history.__file__).parent
MODULES = (
    "log_checks",
    "reader_checks",
    "cursor_checks",
    "ledger_checks",
    "linearizability",
    "checkers",
)
"""In the order in which they import one another."""

SECONDS_MAX = 2.0
"""Processor time: a slower mutant loops for ever, and counts as noticed."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.Gt,
    ast.Gt: ast.Lt,
    ast.GtE: ast.Lt,
}
STEPS = ("completed", "invoked", "step", "earliest")
"""Two events never have the same step, so comparing with or without equality makes no
difference."""

EQUIVALENT = {
    "log_checks": {
        "never in `if len(newest) == 2": "leaves early",
        "LtE in `one[0] < newest": "leaves early",
        "each[1] not in best": "one line's latest comes last, unless it is reordered anyway",
        "each[0] > best": "the same",
    },
    "reader_checks": {
        "GtE in `offset > expected": "an empty gap",
        "always in `if offset > expected and": "an empty gap",
        "group.high": "keeps gaps short: what the subscription was given is left out of them",
        "previous + 1": "the same",
        "offset + 1": "the same",
        "Add in `expected - 1`": "words",
        "send.result <= highest": "what is not read is not the highest that was",
        "one.completed != NEVER": "only a reset that is ok takes effect",
        "always in `if one.outcome == 'ok':\n    group": "the failed ones are left out before",
    },
    "cursor_checks": {
        "always in `if offset >= self.to": "forgotten when the front moves",
        "GtE in `to > self.to": "who did it first",
        "cursor.tried.raise_to": "says it once",
    },
    "ledger_checks": {
        "isinstance(result, tuple)": "words",
        "add is None": "words",
        "before.result > one.result": "no entry is acked twice to one writer",
        "GtE in `known > highest": "who knew it first",
    },
    "linearizability": {
        "is_answer_only": "goes faster",
        "one.call is Call.GET or (one.call is Call.CAS": "goes faster",
        "one.call is Call.CAS and one.result": "no PUT is refused",
        "one.call is Call.CAS`": "no PUT is refused",
        "if not one.is_ok": "goes faster",
        "(taken, state) in known": "goes faster",
        "known.add": "goes faster",
        "after == state or same": "goes faster",
        "same in tried": "goes faster",
        "tried.add": "goes faster",
    },
    "checkers": {"always": "calls of other sorts are not looked at"},
}


class Mutant:
    def __init__(self, module: str, line: int, what: str, tree: ast.Module) -> None:
        self.module, self.line, self.what, self.tree = module, line, what, tree

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}: {self.what}"


def mutants(module: str) -> Iterator[Mutant]:
    tree = ast.parse((KIT / f"{module}.py").read_text())
    for at, node in enumerate(ast.walk(tree)):
        shown = ast.unparse(node)[:60] if mistakes(node) else ""
        for number, (what, _) in enumerate(mistakes(node)):
            changed = copy.deepcopy(tree)
            target = next(found for n, found in enumerate(ast.walk(changed)) if n == at)
            mistakes(target)[number][1]()
            one = Mutant(module, getattr(node, "lineno", 0), f"{what} in `{shown}`", changed)
            if not any(part in one.what for part in EQUIVALENT.get(module, ())):
                yield one


def mistakes(node: ast.AST) -> list[tuple[str, Callable[[], None]]]:
    found: list[tuple[str, Callable[[], None]]] = []
    if isinstance(node, ast.Compare):
        about_steps = any(word in ast.unparse(node) for word in STEPS)
        for at, op in enumerate(node.ops):
            other = (_TURNED if about_steps else _COMPARED).get(type(op), _COMPARED[type(op)])
            found.append((other.__name__, _setter(node.ops, at, other())))
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        found.append((type(other_op).__name__, lambda: setattr(node, "op", other_op)))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other_bin = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        found.append((type(other_bin).__name__, lambda: setattr(node, "op", other_bin)))
    elif isinstance(node, ast.If):
        found.append(("always", lambda: setattr(node, "test", ast.Constant(True))))
        found.append(("never", lambda: setattr(node, "test", ast.Constant(False))))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.YieldFrom):
        found.append(("left out", lambda: setattr(node, "value", ast.Constant(None))))
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        other_name = "max" if node.id == "min" else "min"
        found.append((other_name, lambda: setattr(node, "id", other_name)))
    return found


def _setter(ops: list[Any], at: int, value: Any) -> Callable[[], None]:
    return lambda: ops.__setitem__(at, value)


def load(mutant: Mutant | None) -> dict[str, types.ModuleType]:
    """Load the checkers' modules with one of them mutated, under new names."""
    loaded: dict[str, types.ModuleType] = {}
    prefix = "mutated_kit"
    for name in MODULES:
        if mutant is not None and name == mutant.module:
            tree = copy.deepcopy(mutant.tree)
        else:
            tree = ast.parse((KIT / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                parent, _, imported = node.module.rpartition(".")
                if parent == "tests.support.kit" and imported in MODULES:
                    node.module = f"{prefix}.{imported}"
        module = types.ModuleType(f"{prefix}.{name}")
        sys.modules[module.__name__] = module
        exec(compile(ast.fix_missing_locations(tree), f"{name}.py", "exec"), module.__dict__)
        loaded[name] = module
    return loaded


def is_noticed(check: Callable[[dict[str, types.ModuleType]], bool], mutant: Mutant) -> bool:
    before = signal.signal(signal.SIGVTALRM, _too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_MAX)
    try:
        return not check(load(mutant))
    except Exception:
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _too_long(*_: object) -> None:
    raise TimeoutError
