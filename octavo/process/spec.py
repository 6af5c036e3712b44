"""The spec of a process: a JSON file with all its settings.

The process reads it instead of loading the settings machinery. It stays in the data folder.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from octavo.protocol.codes import OctavoError, Scope

T = TypeVar("T")

SESSION_TIMEOUT_MS = 6_000
LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_FILES_MAX = 4


class InvalidSpec(OctavoError):
    name = "invalid-spec"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """`sections`: fields of the layers' configs by section (`bookie`, `broker`, `ledger`)."""

    name: str
    metadata_url: str
    metadata_credentials_file: str = ""
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    log_format: str = "json"
    log_level: str = "info"
    log_file: str = ""
    log_bytes_max: int = LOG_BYTES_MAX
    log_files_max: int = LOG_FILES_MAX
    sections: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    def config(self, kind: type[T], section: str) -> T:
        return from_plain(kind, self.sections.get(section, {}))


def read_spec(path: Path) -> ProcessSpec:
    try:
        return from_plain(ProcessSpec, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidSpec(f"{path} is not a process spec: {error}") from error


def to_plain(config: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return plain


def from_plain(kind: type[T], values: Mapping[str, Any]) -> T:
    """Make a config from JSON values; lists become tuples."""
    hints = get_type_hints(kind)
    made: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise TypeError(f"{kind.__name__} has no setting {name!r}")
        made[name] = tuple(value) if isinstance(value, list) else value
    return kind(**made)
