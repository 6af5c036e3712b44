"""Who speaks on the connections of a bookie, and what they may: the policy as the bookie has it.

A node proves itself by a token made of the cluster's secret, a reader by one that a broker gave it,
others by their TLS certificate and a rule about `bookies`. In a cluster that is not secured nobody
has to, and everybody may; but who has proved themselves goes on when it is secured.

Promises: who lost a right is told to `on_change` at once when the policy says so, and to `on_doubt`
when what they have proved may count no longer: a reader's token ends with what it was given out
for. With the metadata store away all that is as known last. Relies on `Authority`.
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
    """Who knows callers by what they show, and notices when they are no more who they were."""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever somebody's proof may hold no longer."""

    def lapsed(self, identity: Identity, standing: Standing) -> str:
        """Why what `standing` says proves `identity` no longer; empty when it does."""


class Guard:
    """Of one bookie. `start` before use; `close` ends it."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Callable[[], int],
        authenticates: KnowsCallers | None = None,
    ) -> None:
        """`clock` gives milliseconds since 1970. `authenticates` knows certificates and what the
        admin port is shown; without it nodes alone are known."""
        self._store = store
        self._clock = clock
        self._authenticates = authenticates
        self._tokens: BookieTokens | None = None
        self._bookie_id = ""
        self.authority = Authority(store)

    async def start(self, bookie_id: str) -> None:
        """Read secret and policy; the tokens of nodes are to be for `bookie_id`. Raises
        `MetadataUnavailable`, `BadRecord`."""
        self._bookie_id = bookie_id
        self._tokens = BookieTokens(await cluster_secret(self._store), self._clock)
        await self.authority.start()

    async def close(self) -> None:
        """Follow the policy no more. May be called twice."""
        await self.authority.close()

    @property
    def secured(self) -> bool:
        """Whether callers have to prove who they are."""
        return self.authority.secured

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when anybody's rights may have changed."""
        self.authority.on_change(listener)

    def on_doubt(self, listener: Callable[[], None]) -> None:
        """Call `listener` when certificates and readers' tokens are to be looked at anew."""
        if self._authenticates is not None:
            self._authenticates.on_change(listener)

    def check(self, token: bytes) -> Proof:
        """What a token proves. Raises `Unauthenticated`."""
        assert self._tokens is not None, "to be started first"
        proof = self._tokens.verify(token, self._bookie_id)
        if reason := self._lapsed(proof):
            raise Unauthenticated(f"the token counts no longer: {reason}. Ask for another one")
        return proof

    def at_hand(self, shown: Shown) -> Proof | None:
        """What a certificate proves, as far as it needs no waiting."""
        if self._authenticates is None:
            return None
        found = self._authenticates.at_hand(shown)
        return None if found is None else Proof(found)

    async def look_at(self, shown: Shown) -> Proof | None:
        """What a certificate proves. Raises `Unauthenticated`."""
        if self._authenticates is None:
            return None
        return Proof(await self._authenticates.identify(shown))

    async def identify(self, shown: Shown) -> Identity:
        """Who calls the admin port. Raises `Unauthenticated`."""
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
        """How long a proof still holds; None when it does not end."""
        end_s = proof.identity.expires_at_s
        return None if end_s is None else max(0.0, end_s - self._clock() / 1000)

    def rights(self, proof: Proof | None) -> Rights | None:
        """What a caller may do now, by what it has proved; None: everything."""
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
        """Why what a reader's token was given out for counts no longer; empty when it does."""
        if proof.standing is None or self._authenticates is None or not self.secured:
            return ""
        return self._authenticates.lapsed(proof.identity, proof.standing)
