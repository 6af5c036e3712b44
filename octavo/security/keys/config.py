"""What may be set of keys: one group, for brokers and for tools that read or write ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.security.keys.errors import InvalidKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysConfig:
    """All settings of keys. None given: what is encrypted is neither read nor written."""

    file: str = ""
    """The key file (`octavo keys`): readable by its owner alone."""
    service: str = ""
    """`module:factory`, called without arguments: it returns a key service (`KeyService`). Instead
    of `file`."""
    recheck_ms: int = 500
    """A key that its source last confirmed longer ago is asked for again before it opens anything:
    what is forgotten is unreadable after so long."""
    timeout_ms: int = 5_000
    """A key service that has not answered by then counts as not there."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense. Raises `InvalidKeys`."""
        if self.file and self.service:
            raise InvalidKeys("keys settings file and service: give one of them")
        if self.service and not all(self.service.partition(":")):
            raise InvalidKeys(
                f"keys setting service = {self.service!r}: write module:factory, as in "
                "my_company.octavo_keys:connect"
            )
        for name in ("recheck_ms", "timeout_ms"):
            if getattr(self, name) < 1:
                raise InvalidKeys(f"keys setting {name} = {getattr(self, name)}: use 1 or more")
