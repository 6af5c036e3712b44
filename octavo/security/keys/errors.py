"""Errors of encryption keys. No message holds a key."""

from __future__ import annotations

from octavo.protocol.codes import OctavoError, Scope


class KeyMissing(OctavoError):
    """The key source does not have the key; it may have been deleted."""

    name = "encryption-key-missing"
    http_status = 503
    scope = Scope.LEDGER


class KeySourceUnavailable(OctavoError):
    """The key source does not answer: nothing is opened or sealed."""

    name = "key-source-unavailable"
    http_status = 503
    retryable = True


class InvalidKeys(OctavoError):
    """The message names the line, never the key."""

    name = "keys"
    scope = Scope.PROCESS
