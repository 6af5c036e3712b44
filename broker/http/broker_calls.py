"""The headers of a call between brokers, byte for byte, and their proof. Pure.

    Octavo-Forwarded-By         the calling broker
    Octavo-Forwarded-To         the broker that it means to call
    Octavo-Forwarded-Identity   the original caller: name, groups, kind of proof, expiry; as JSON
    Octavo-Forwarded-Nonce      the caller's run, and a number that is higher for each of its calls
    Octavo-Forwarded-Seal       HMAC-SHA256 over these headers, method, path with query, and the
                                incarnation of the topic

The key is derived from the cluster's secret, which only readers of its metadata have. The proof
contains no time, so a wrong clock cannot break a cluster. A repeated proof is refused (replays.py),
except by a broker that has restarted since. The proof does not cover the body; TLS protects that.

Brokers of 0.1 know `Octavo-Forwarded-Proof`, which covers neither identity nor nonce. It is sent
and accepted while the cluster is not secured, so that brokers can be upgraded one by one.

"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

from octavo.security.principal import ANONYMOUS, Identity

FORWARDED_HEADER = "Octavo-Forwarded-By"
"""Set by the broker that forwards a call; the receiving broker never forwards it again."""
TARGET_HEADER = "Octavo-Forwarded-To"
PROOF_HEADER = "Octavo-Forwarded-Proof"
INCARNATION_HEADER = "Octavo-Incarnation"
"""The incarnation of the topic: in answers, and in calls that mean only that incarnation."""
ESCAPED_HEADER = "Octavo-Forwarded-Escaped"
"""Covered by the proof, and empty."""
IDENTITY_HEADER = "Octavo-Forwarded-Identity"
NONCE_HEADER = "Octavo-Forwarded-Nonce"
SEAL_HEADER = "Octavo-Forwarded-Seal"
KEY_USE = "calls between brokers"
"""The purpose for which the key is derived from the cluster's secret."""
INNER_HEADERS = frozenset(
    name.lower()
    for name in (
        FORWARDED_HEADER,
        TARGET_HEADER,
        PROOF_HEADER,
        ESCAPED_HEADER,
        IDENTITY_HEADER,
        NONCE_HEADER,
        SEAL_HEADER,
    )
)
"""Ignored unless a broker sends them."""

_COVERED = (FORWARDED_HEADER, TARGET_HEADER, INCARNATION_HEADER, ESCAPED_HEADER)
_SEALED = (*_COVERED, IDENTITY_HEADER, NONCE_HEADER)
_NONCE = re.compile(r"([0-9a-f]{1,32})-(0|[1-9][0-9]{0,17})")


class Passed(NamedTuple):
    """What another broker says about a call that it has made."""

    target: str
    """The broker that it means to call."""
    identity: Identity
    """The caller for whom it calls."""
    run: str = ""
    number: int = 0
    """The number of the call in that run. If the run is empty, that broker does not number its
    calls."""


class BrokerProof:
    """Makes and checks proofs with one key."""

    def __init__(self, key: bytes, run: str, secured: Callable[[], bool] = lambda: False) -> None:
        """`run`: hexadecimal digits that are unique to this run of this broker."""
        assert _NONCE.fullmatch(f"{run}-0"), run
        self._key = key
        self.run = run
        self._numbers = itertools.count()
        self._secured = secured

    def enter(
        self,
        headers: MutableMapping[str, str],
        caller: str,
        target: str,
        method: str,
        path: str,
        identity: Identity,
    ) -> None:
        """Add headers that prove that `caller` calls `target` for `identity`.

        The covered headers must not change afterwards. `path`: as sent, with its query.
        """
        headers[FORWARDED_HEADER], headers[TARGET_HEADER] = caller, target
        headers[IDENTITY_HEADER] = _written(identity)
        headers[NONCE_HEADER] = f"{self.run}-{next(self._numbers)}"
        headers[SEAL_HEADER] = self._proof(_SEALED, headers, method, path)
        if not self._secured():
            headers[PROOF_HEADER] = self._proof(_COVERED, headers, method, path)

    def look(self, headers: Mapping[str, str], method: str, path: str) -> Passed | None:
        """Return what the calling broker says; None if the call has no valid proof."""
        if FORWARDED_HEADER not in headers:
            return None
        target = headers.get(TARGET_HEADER, "")
        if self._holds(SEAL_HEADER, _SEALED, headers, method, path):
            nonce = _NONCE.fullmatch(headers.get(NONCE_HEADER, ""))
            identity = _read(headers.get(IDENTITY_HEADER, ""))
            if nonce is None or identity is None:
                return None
            return Passed(target, identity, nonce[1], int(nonce[2]))
        if self._secured() or not self._holds(PROOF_HEADER, _COVERED, headers, method, path):
            return None
        return Passed(target, ANONYMOUS)

    def _holds(
        self, name: str, covered: tuple[str, ...], headers: Mapping[str, str], *call: str
    ) -> bool:
        found = headers.get(name)
        if found is None or not found.isascii():
            return False
        return hmac.compare_digest(found, self._proof(covered, headers, *call))

    def _proof(
        self, covered: tuple[str, ...], headers: Mapping[str, str], method: str, path: str
    ) -> str:
        # A field cannot contain a zero byte, so that parts of different fields cannot be confused;
        # and the two kinds of proof have different numbers of fields.
        fields = (method, path, *(headers.get(name, "") for name in covered))
        text = "\0".join(fields).encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, hashlib.sha256).hex()


def _written(identity: Identity) -> str:
    name, groups, source, expires_at_s = identity[:4]  # the rest is not sent
    return json.dumps([name, sorted(groups), source, expires_at_s])  # ASCII, as a header must be


def _read(text: str) -> Identity | None:
    try:
        name, groups, source, expires_at_s = json.loads(text)
        end = None if expires_at_s is None else float(expires_at_s)
        return Identity(str(name), frozenset(map(str, groups)), str(source), end)
    except (ValueError, TypeError):  # from a version with another form
        return None
