"""Decide whether a caller may do something, and tell the audit log.

A denial has the same words whether the resource exists or not. No client may write to the topics
that brokers write for themselves, even in an unsecured cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import structlog

from octavo.broker.internal_topics import Door, door_of, shut
from octavo.protocol.log_limiter import LogLimiter
from octavo.security.audit import Decided
from octavo.security.principal import ANONYMOUS, Forbidden, Identity, Unauthenticated
from octavo.security.rules import CLUSTER, Operation, Resource

if TYPE_CHECKING:
    from octavo.security.authority import Authority

OnDecision = Callable[[Decided], None]

log = structlog.get_logger()


class Authorizer:
    def __init__(
        self,
        authority: Authority | None,
        clock: Callable[[], int],
        count_denied: Callable[[str], object],
    ) -> None:
        """Decide about operations; without `authority` everything is allowed."""
        self.on_decision: OnDecision | None = None
        self._authority = authority
        self._clock = clock
        self._count_denied = count_denied
        self._denials = LogLimiter()

    @property
    def secured(self) -> bool:
        return self._authority is not None and self._authority.secured

    @property
    def generation(self) -> int:
        return 0 if self._authority is None else self._authority.generation

    def may(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        return (
            self._authority is None or self._authority.decide(identity, operation, resource).allowed
        )

    def may_some(self, identity: Identity, begins: Resource) -> bool:
        return self._authority is None or self._authority.policy.may_see_some(identity, begins)

    def check(
        self,
        identity: Identity,
        operation: Operation,
        resource: Resource,
        peer: str,
        call: str = "",
    ) -> None:
        self._check(Decided(identity, operation, resource, True, peer, call=call), tell=True)

    def check_at_owner(
        self, identity: Identity, operation: Operation, resource: Resource, peer: str, call: str
    ) -> None:
        """Check an operation; the first broker reported it if allowed, unless a broker calls."""
        asked = Decided(identity, operation, resource, True, peer, call=call)
        self._check(asked, tell=identity.is_node)

    def again(
        self, identity: Identity, operation: Operation, resource: Resource, peer: str, call: str
    ) -> None:
        if self.secured:
            self._tell(Decided(identity, operation, resource, True, peer, call=call))

    def _check(self, asked: Decided, *, tell: bool) -> None:
        if self.secured:
            self._check_valid(asked.identity)
            if not self.may(asked.identity, asked.operation, asked.resource):
                self._deny(asked)
            if tell:
                self._tell(asked)
        self._check_door(asked)

    def _check_valid(self, identity: Identity) -> None:
        if self._is_over(identity):
            raise Unauthenticated(
                f"the credentials of {identity.name} have ended: authenticate again"
            )

    def _is_over(self, identity: Identity) -> bool:
        end_s = identity.expires_at_s
        return end_s is not None and self._clock() >= end_s * 1000

    def _check_door(self, asked: Decided) -> None:
        door = door_of(asked.operation, asked.resource)
        if door is Door.SHUT:
            self._tell(asked._replace(allowed=False))
            raise shut(asked.resource.name)
        if door is Door.ADMINISTRATORS and not self.may(asked.identity, Operation.ADMIN, CLUSTER):
            self._deny(asked._replace(operation=Operation.ADMIN, resource=CLUSTER))

    def _deny(self, asked: Decided, *, some: bool = False) -> NoReturn:
        self._tell(asked._replace(allowed=False))
        identity, operation, resource, peer = (
            asked.identity, asked.operation, asked.resource, asked.peer,
        )  # fmt: skip
        is_known = identity.name != ANONYMOUS.name
        self._count_denied("forbidden" if is_known else "unauthenticated")
        subject = f"{identity.name} {operation}" if is_known else peer
        if count := self._denials.count(_now_s(), subject):
            log.warning(
                "access_denied",
                principal=identity.name,
                operation=str(operation),
                resource=str(resource),
                remote=peer,
                count=count,
            )
        what = f"any {resource.kind}" if some else str(resource)
        if not is_known:
            raise Unauthenticated(f"an anonymous caller may not {operation} {what}: sign in first")
        ask = f"explain {identity.name} {operation} {resource}"
        if some:
            ask = f"list --principal {identity.name}"
        raise Forbidden(f"{identity.name} may not {operation} {what}: `octavo acl {ask}` says why")

    def _tell(self, decided: Decided) -> None:
        if self.on_decision is not None and self._authority is not None:
            found = self._authority.decide(decided.identity, decided.operation, decided.resource)
            reason = found.reason if found.allowed == decided.allowed else ""
            self.on_decision(decided._replace(reason=reason))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
