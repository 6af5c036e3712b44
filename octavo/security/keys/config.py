"""Settings of encryption keys, for brokers and for tools that read or write ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.protocol.bounds import beyond_bounds
from octavo.security.keys.errors import InvalidKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysConfig:
    """All settings of keys. By default there are none: encrypted data is not read or written."""

    file: str = ""
    """The key file (`octavo keys`). Only its owner may be able to read it."""
    service: str = ""
    """`module:factory`, which makes a key service (`KeyService`). Use it instead of `file`."""
    recheck_ms: int = 500
    """Ask the source again after this time, before a key opens anything."""
    timeout_ms: int = 5_000
    """After this time without an answer, the key service counts as unavailable."""

    def __post_init__(self) -> None:
        if self.file and self.service:
            raise InvalidKeys("keys settings file and service: give only one")
        if self.service and not all(self.service.partition(":")):
            raise InvalidKeys(
                f"keys setting service = {self.service!r}: write module:factory, as in "
                "my_company.octavo_keys:connect"
            )
        if wrong := beyond_bounds(self):
            raise InvalidKeys(
                f"keys setting {wrong.name} = {wrong.value}: use {wrong.bounds.least} or more"
            )
