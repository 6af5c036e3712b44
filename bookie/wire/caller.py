"""Track the peer of a connection: what it has proved, and what it may do.

The connection is given its rights whenever they change; `None` means all. A certificate is checked
before any request is read. When a token ends or a right is withdrawn, the connection ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from octavo.bookie.wire.rights import STRANGER, Need, Rights
from octavo.protocol.auth import AUTH_DISABLED, OCTAVO, AuthMessage
from octavo.protocol.codes import Code
from octavo.protocol.log_limiter import LogLimiter, host_of
from octavo.security.principal import Shown, Unauthenticated

if TYPE_CHECKING:
    from prometheus_client import Counter

    from octavo.bookie.wire.guard import Guard
    from octavo.security.bookie_tokens import Proof

log = structlog.get_logger()

FAILED_PROOFS_MAX = 3
"""Failed attempts on one connection; each costs the bookie some work."""
PROOF_S = 10.0
"""After this time a peer that has proved nothing is disconnected: nodes need connections too."""
_CLOCKS_APART_S = 0.01
HOW = (
    f"authenticate by the plugin {OCTAVO} with a token, or by a certificate that a rule about "
    "bookies names"
)


class Caller:
    def __init__(
        self,
        guard: Guard,
        refusals: LogLimiter,
        counted: Counter,
        on_rights: Callable[[Rights | None], None],
    ) -> None:
        """Watch a caller; `on_rights` is called now, and whenever the rights change."""
        self._guard = guard
        self._refusals = refusals
        self._counted = counted
        self._on_rights = on_rights
        self._loop = asyncio.get_running_loop()
        self._proof: Proof | None = None
        self._certificate: Shown | None = None
        """The certificate that the proof rests on; None: it rests on a token."""
        self._rights: Rights | None = None
        self._failed = 0
        self._end: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.peer = "?"
        self._let_go: Callable[[], None] = _nobody
        self._set(guard.rights(None))

    def connected(
        self,
        transport: asyncio.BaseTransport,
        peer: str,
        *,
        hold: Callable[[bool], None],
        let_go: Callable[[], None],
    ) -> None:
        """Check the peer's certificate, if it has one.

        Meanwhile `hold` stops the reading of requests. `let_go` ends a connection that lost a
        right.
        """
        self.peer = peer
        self._let_go = let_go
        self._deadline = self._loop.call_later(PROOF_S, self._late)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls and tls.getpeercert(True)
        if not certificate:
            return
        shown = self._certificate = Shown(certificate=certificate, peer=peer)
        proof = self._guard.at_hand(shown)
        if proof is not None:
            self._take(proof)
            return
        hold(True)
        self._looking = self._loop.create_task(self._look(shown, hold))

    def close(self) -> None:
        self._let_go = _nobody
        if self._end is not None:
            self._end.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        if self._looking is not None:
            self._looking.cancel()

    @property
    def name(self) -> str:
        return "anonymous" if self._proof is None else self._proof.identity.name

    @property
    def is_tiresome(self) -> bool:
        return self._failed >= FAILED_PROOFS_MAX

    def judge(self) -> None:
        """End the connection if the caller has lost a right."""
        before = self._rights
        self._set(self._guard.rights(self._proof))
        if self._rights is not None and not self._rights.covers(before):
            log.info("caller_lost_rights", peer=self.peer, who=self.name)
            self._let_go()

    def doubt(self) -> None:
        """Check again: a certificate may be revoked, its owner or a reader disabled."""
        if self._certificate is None:
            self.judge()
        elif self._looking is None:
            self._looking = self._loop.create_task(self._look(self._certificate, _hold_nothing))

    def show(self, message: AuthMessage) -> tuple[Code, AuthMessage]:
        known = self._rights is None or Need.KNOWN in self._rights.needs
        if message.plugin != OCTAVO and known:
            return Code.OK, AuthMessage(AUTH_DISABLED, b"")
        try:
            if message.plugin != OCTAVO:
                raise Unauthenticated(f"this cluster is secured: {HOW}")
            proof = self._guard.check(message.payload)
            self._certificate = None
            self._take(proof)
        except Unauthenticated as error:
            self._failed += 1
            self.tell(str(error))
            return Code.UNAUTHORIZED, AuthMessage(OCTAVO, str(error).encode())
        return Code.OK, AuthMessage(OCTAVO, b"")

    def refused(self) -> str:
        if self._proof is None:
            reason = f"this cluster is secured, and you have not proved who you are: {HOW}"
        else:
            reason = f"{self.name} has no right to make this request to a bookie"
        self.tell(reason)
        return reason

    def tell(self, reason: str) -> None:
        """Log refusals of each host at most once a minute."""
        self._counted.inc()
        if times := self._refusals.count(self._loop.time(), host_of(self.peer)):
            log.warning("caller_refused", peer=self.peer, who=self.name, reason=reason, times=times)

    def _set(self, rights: Rights | None) -> None:
        self._rights = rights
        self._on_rights(rights)

    def _take(self, proof: Proof) -> None:
        self._proof = proof
        self._set(self._guard.rights(proof))
        if self._end is not None:
            self._end.cancel()
            self._end = None
        left_s = self._guard.seconds_left(proof)
        if left_s is not None:
            self._end = self._loop.call_later(left_s, self._ended, proof)

    def _late(self) -> None:
        if self._proof is None and self._rights == STRANGER:
            self.tell(f"nothing was proved in {PROOF_S:g} s")
            self._let_go()

    def _ended(self, proof: Proof) -> None:
        left_s = self._guard.seconds_left(proof)
        if left_s:  # the loop's clock and the clock of the proof may differ
            self._end = self._loop.call_later(left_s + _CLOCKS_APART_S, self._ended, proof)
        else:
            self.judge()

    async def _look(self, shown: Shown, hold: Callable[[bool], None]) -> None:
        try:
            proof = await self._guard.look_at(shown)
            # A token may have arrived during the check. It then counts instead.
            if proof is not None and self._certificate is shown:
                self._take(proof)
        except Unauthenticated as error:
            self.tell(str(error))
            if self._certificate is shown:
                self._proof = None
                self.judge()
        except Exception as error:  # the peer stays connected, as if it had shown nothing
            log.error("caller_not_known", peer=self.peer, error=repr(error), exc_info=error)
        finally:
            self._looking = None
            hold(False)


def _hold_nothing(_: bool) -> None:
    """Keep the connection's old rights during a repeated check."""


def _nobody() -> None: ...
