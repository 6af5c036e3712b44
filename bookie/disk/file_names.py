"""File names that are a number: sixteen hex digits and a suffix, so that names sort as numbers do.

Journal files, entry logs and ledger state files are called so; each format keeps its own suffix.
"""

from __future__ import annotations


def numbered_name(number: int, suffix: str) -> str:
    """The name of file `number`, for example `000000000000001a.journal`."""
    return f"{number:016x}{suffix}"


def number_in(name: str, suffix: str) -> int | None:
    """The number in such a name; None for every other file of the folder."""
    stem, dot, rest = name.partition(".")
    if dot + rest != suffix or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None
