"""Whether the libraries of `octavo pipeline table` are installed. Imports none of them."""

from __future__ import annotations

import importlib.util

from octavo.protocol.codes import OctavoError


class TableLibraryMissing(OctavoError):
    name = "table-library-missing"


def check_libraries() -> None:
    for package in ("pyiceberg", "pyiceberg_core", "pyarrow", "sqlalchemy"):
        if importlib.util.find_spec(package) is None:
            raise TableLibraryMissing(
                f"tables need {package}, which is not installed: pip install 'octavo[tables]'"
            )
