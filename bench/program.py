"""What the programs of this folder have in common: their command line, and how they end.

`--help` shows a program's own first lines, which have its examples. Numbers are above 0, unless
an option's type is `or_zero`. The last line that a program prints is one JSON document; `--json
FILE` has it in a file as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def or_zero(text: str) -> int:
    """A whole number, or 0."""
    if (found := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return found


def _above_0(number: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not (found := number(text)) > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return found

    return read


def several(known: Iterable[str] = ()) -> Callable[[str], list[str]]:
    """The type of an option that takes names with commas, of those that are `known`."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [one for one in found if one not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return found

    return read


def rates(text: str) -> list[float]:
    """The type of an option that takes numbers above 0 with commas."""
    try:
        return [_above_0(float)(one) for one in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas") from None


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with `doc`, the first lines of the program."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.register("type", int, _above_0(int))
    parser.register("type", float, _above_0(float))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there, too")
    return parser


def end(options: argparse.Namespace, bench: str, **found: Any) -> None:
    """Print the document: the program's name, the machine, its settings, and what was found."""
    settings = {
        name: value for name, value in vars(options).items() if name != "json" and value is not None
    }
    document = {
        "bench": bench,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "settings": settings,
        **found,
    }
    line = json.dumps(document)
    if options.json:
        options.json.write_text(line + "\n")
    print(line, flush=True)
