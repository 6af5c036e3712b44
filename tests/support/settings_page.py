"""Write the tables of settings in docs/operations.md: `python -m tests.support.settings_page`.
A test compares the page with what this module writes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from octavo.bookie.config import BookieConfig
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.ledger.options import LedgerOptions
from octavo.security.keys.config import KeysConfig
from octavo.security.settings import SecurityConfig
from octavo.settings import ProcessConfig
from octavo.tls.settings import TlsConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
KINDS: Mapping[str, Any] = {
    "process": ProcessConfig,
    "bookie": BookieConfig,
    "broker": BrokerConfig,
    "http": HttpConfig,
    "ledger": LedgerOptions,
    "tls": TlsConfig,
    "security": SecurityConfig,
    "keys": KeysConfig,
}
_ROWS = re.compile(r"(?<=\|---\|---\|---\|\n)(?:\| .*\n)+")


def written(page: str) -> str:
    for section, kind in KINDS.items():
        before, head, after = page.partition(f"\n### {section}\n")
        assert head, f"the page has no section {section}"
        page = before + head + _ROWS.sub(lambda _, kind=kind: "".join(_rows(kind)), after, count=1)
    return page


def _rows(kind: Any) -> Iterator[str]:
    reasons = _reasons(kind)
    for field in dataclasses.fields(kind):
        made = field.default_factory
        value = field.default if made is dataclasses.MISSING else made()
        yield f"| `{field.name}` | {_shown(field.name, value)} | {reasons[field.name]} |\n"


def _reasons(kind: type) -> dict[str, str]:
    """Return the text below each field, on one line and without its full stop."""
    [declared] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(declared, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            said = text.value if isinstance(text, ast.Constant) else None
            assert isinstance(said, str), f"{kind.__name__}.{field.target.id} has no text below it"
            found[field.target.id] = " ".join(said.split()).removesuffix(".")
    return found


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if value in ("", ()):
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"`{value}`"
    if "bytes" in name:
        for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
            if value % size == 0:
                return f"{value // size} {unit}"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
