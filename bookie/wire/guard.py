"""Decide who a peer of a bookie is, and what it may do, by the cluster's policy.

A node proves itself by a token made from the cluster's secret, a reader by a token from a broker,
others by a TLS certificate and a rule about `bookies`. In a cluster that is not secured every
caller may do everything.

A right that the policy takes away ends at once (`on_change`). While the metadata store is away, the
last known policy holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.bookie.wire.rights import STRANGER, Need, Rights, reader_of, rights_of
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore
from octavo.security.authority import Authority
from octavo.security.bookie_tokens import BookieTokens, Proof
from octavo.security.principal import (
    ANONYMOUS,
    Authenticates,
    Identity,
    Shown,
    Standing,
    Unauthenticated,
)
from octavo.security.rules import BOOKIES, Kind, Operation, Resource

_RIGHTS = {Need.READ: Operation.READ, Need.WRITE: Operation.WRITE, Need.ADMIN: Operation.ADMIN}
_BEARER = "bearer "
_NOTHING_PROVED = Proof(ANONYMOUS)


class KnowsCallers(Authenticates, Protocol):
    def on_change(self, listener: Callable[[], None]) -> None: ...

    def lapsed(self, identity: Identity, standing: Standing) -> str:
        """Say why `standing` no longer proves `identity`; empty when it does."""


class Guard:
    def __init__(
        self,
        store: MetadataStore,
        clock: Callable[[], int],
        authenticates: KnowsCallers | None = None,
    ) -> None:
        """Decide about callers; `clock` gives milliseconds since 1970.

        Without `authenticates` only nodes can prove who they are.
        """
        self._store = store
        self._clock = clock
        self._authenticates = authenticates
        self._tokens: BookieTokens | None = None
        self._bookie_id = ""
        self.authority = Authority(store)

    async def start(self, bookie_id: str) -> None:
        """Start; nodes' tokens must name `bookie_id`.

        Raises `MetadataUnavailable`, `BadRecord`.
        """
        self._bookie_id = bookie_id
        self._tokens = BookieTokens(await cluster_secret(self._store), self._clock)
        await self.authority.start()

    async def close(self) -> None:
        """Stop; a second call does nothing."""
        await self.authority.close()

    @property
    def secured(self) -> bool:
        return self.authority.secured

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the rights of any caller may have changed."""
        self.authority.on_change(listener)

    def on_doubt(self, listener: Callable[[], None]) -> None:
        """Call `listener` when certificates and readers' tokens must be checked again."""
        if self._authenticates is not None:
            self._authenticates.on_change(listener)

    def check(self, token: bytes) -> Proof:
        assert self._tokens is not None, "call `start` first"
        proof = self._tokens.verify(token, self._bookie_id)
        if reason := self._lapsed(proof):
            raise Unauthenticated(f"the token is no longer valid: {reason}. Ask for a new token")
        return proof

    def at_hand(self, shown: Shown) -> Proof | None:
        """Return a certificate's proof, if known without waiting."""
        if self._authenticates is None:
            return None
        found = self._authenticates.at_hand(shown)
        return None if found is None else Proof(found)

    async def look_at(self, shown: Shown) -> Proof | None:
        if self._authenticates is None:
            return None
        return Proof(await self._authenticates.identify(shown))

    async def identify(self, shown: Shown) -> Identity:
        given = shown.authorization or ""
        if given[: len(_BEARER)].lower() == _BEARER:
            try:
                proof = self.check(given[len(_BEARER) :].strip().encode())
            except Unauthenticated:
                if self._authenticates is None:
                    raise
            else:
                if proof.identity.is_node:
                    return proof.identity
        if self._authenticates is None:
            return ANONYMOUS
        return await self._authenticates.identify(shown)

    def seconds_left(self, proof: Proof) -> float | None:
        """Return how long the proof is valid; None when it has no end."""
        end_s = proof.identity.expires_at_s
        return None if end_s is None else max(0.0, end_s - self._clock() / 1000)

    def rights(self, proof: Proof | None) -> Rights | None:
        """Return the caller's rights; None means everything."""
        if not self.secured:
            return None
        if proof is None or self.seconds_left(proof) == 0.0:
            proof = _NOTHING_PROVED
        identity, decide = proof.identity, self.authority.decide
        if proof.ledgers is not None:
            if identity.is_node:
                return reader_of(proof.ledgers)
            if self._lapsed(proof):
                return STRANGER
            topic = Resource(Kind.TOPIC, proof.topic or "")
            allowed = decide(identity, Operation.CONSUME, topic).allowed
            return reader_of(proof.ledgers) if allowed else STRANGER
        if identity.is_node:
            return None
        return rights_of(
            *(need for need, what in _RIGHTS.items() if decide(identity, what, BOOKIES).allowed)
        )

    def _lapsed(self, proof: Proof) -> str:
        """Say why a reader's token is not valid any more; empty if it is."""
        if proof.standing is None or self._authenticates is None or not self.secured:
            return ""
        return self._authenticates.lapsed(proof.identity, proof.standing)
