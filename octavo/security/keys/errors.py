"""What can go wrong with keys. No message holds one."""

from __future__ import annotations

from octavo.protocol.codes import OctavoError, Scope


class KeyMissing(OctavoError):
    """The key source has no such key: never had it, or has forgotten it."""

    name = "encryption-key-missing"
    scope = Scope.LEDGER


class KeySourceUnavailable(OctavoError):
    """Whether there is a key cannot be told now. Nothing is opened or sealed meanwhile."""

    name = "key-source-unavailable"
    retryable = True


class InvalidKeys(OctavoError):
    """A key file, or a setting of keys, that makes no sense. Names the line, never the key."""

    name = "keys"
    scope = Scope.PROCESS
