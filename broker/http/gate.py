"""The one place where a call is let in: who asks, and may they? Before a body is read or work done.

    nothing shown, or what proves nothing, and it matters      401, says how to prove it
    somebody, and no rule allows it                            403, says who, what and to what
    the policy does not say that the cluster is secured        anybody, for everything but calls
                                                               between brokers

What brokers write for themselves no client writes, whatever the rules say, and a cluster that is
not secured is no exception (internal_topics.py).

A denial is the same words whether what was asked for exists or not. What lasts is asked about
again: a `Grant` holds for one generation of the policy, as long as the proof of the caller does,
and whoever holds a call open looks at it (`holds`) and is woken for it (`Wakes`).

Keeps nothing but counters; a crash takes nothing with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

import structlog

from octavo.broker.http.connections import Connection
from octavo.broker.http.needs import Right
from octavo.broker.http.problems import Problem
from octavo.broker.internal_topics import INTERNAL_NAMESPACES, Door, door_of, shut
from octavo.protocol.tally import Tally
from octavo.security.audit import Decided
from octavo.security.principal import (
    ANONYMOUS,
    Authenticates,
    Forbidden,
    Identity,
    Shown,
    Unauthenticated,
)
from octavo.security.rules import CLUSTER, Operation, Resource

if TYPE_CHECKING:
    from aiohttp import web

    from octavo.broker.http.broker_calls import Passed
    from octavo.broker.http.router import Route
    from octavo.security.authority import Authority


OnDecision = Callable[[Decided], None]
"""Told of each decision."""
OnUnauthenticated = Callable[[str, str, str], None]
"""Told of proofs that prove nothing: from which address, for which call, why."""

log = structlog.get_logger()


class HasCertificate(Protocol):
    """A connection."""

    @property
    def certificate(self) -> bytes | None:
        """Of its client, if it has shown one (DER)."""


class Grant(NamedTuple):
    """A call was let in."""

    identity: Identity
    generation: int
    """Of the policy that says so."""
    shown: Shown | None = None
    """What proved the identity, if this broker has seen it."""


class Wakes:
    """Those who wait, and want to hear when something has changed for all of them."""

    def __init__(self) -> None:
        self._sleepers: dict[asyncio.Future[None], None] = {}  # a dict keeps their order

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"sleepers": len(self._sleepers)}

    @contextmanager
    def next(self) -> Iterator[asyncio.Future[None]]:
        """Done at the next `wake`."""
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers[sleeper] = None
        try:
            yield sleeper
        finally:
            del self._sleepers[sleeper]

    def wake(self) -> None:
        """Something has changed."""
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)


class Gate:
    """Of one broker."""

    def __init__(
        self,
        authority: Authority | None,
        authenticator: Authenticates | None,
        clock: Callable[[], int],
        count_denied: Callable[[str], object],
        *,
        required: bool = False,
    ) -> None:
        """Without `authority` nothing is asked. `clock`: milliseconds since 1970. `required`: a
        cluster that is not secured is not served at all."""
        self.on_decision: OnDecision | None = None
        self.on_unauthenticated: OnUnauthenticated | None = None
        self.wakes = Wakes()
        self._authority = authority
        self._authenticator = authenticator
        self._clock = clock
        self._count_denied = count_denied
        self._required = required
        self._denials = Tally()
        self._free = Grant(ANONYMOUS, -1)
        if authority is not None:
            authority.on_change(self.wakes.wake)

    @property
    def secured(self) -> bool:
        """Whether anything is asked at all."""
        return self._authority is not None and self._authority.secured

    @property
    def generation(self) -> int:
        """Another one after each change of the policy."""
        return 0 if self._authority is None else self._authority.generation

    async def admit(
        self,
        request: web.BaseRequest,
        route: Route,
        variables: Mapping[str, str],
        passed: Passed | None,
    ) -> Grant:
        """Let a call in. `passed`: what the broker says that has passed it on.

        Raises `Unauthenticated`, `Forbidden`, `InvalidName`, and a 403 for a call between brokers
        that is none.
        """
        needs = route.needs
        if needs.is_inner and passed is None:
            raise Problem(
                403,
                "brokers-only",
                f"{route.method} {route.path} is a call between brokers, and this one "
                "does not prove that it comes from a broker of this cluster",
            )
        generation = self.generation
        if not self.secured:
            grant = self._unasked(route, passed, generation)
            self._check_internal(grant.identity, route, variables, request.remote or "unknown")
            return grant
        if needs.is_open or needs.is_inner:
            return Grant(ANONYMOUS if passed is None else passed.identity, generation)
        resources = [(right, right.resource(variables)) for right in _with_instead(needs.rights)]
        peer = request.remote or "unknown"
        if passed is None:
            shown = self._shown(request, peer)
            identity = await self._identify(shown, route)
        else:
            shown, identity = None, passed.identity
        if self._is_over(identity):
            raise Unauthenticated(f"what proved {identity.name} has ended")
        found = dict(resources)
        for right in needs.rights:
            asked = Decided(identity, right.operation, found[right], True, peer, call=route.name)
            if not self._may(identity, right, found):
                self._deny(asked, some=right.some)
            if passed is None or identity.is_node:  # else who was asked first has told it
                self._tell(asked)
        self._check_internal(identity, route, variables, peer)
        return Grant(identity, generation, shown)

    def holds(self, grant: Grant) -> bool:
        """Whether a call that was let in may go on without being asked anew."""
        if grant.generation != self.generation or self._is_over(grant.identity):
            return False
        if grant.shown is None or self._authenticator is None:
            return True
        return self._authenticator.at_hand(grant.shown) == grant.identity

    def holds_for(self, grant: Grant, connection: HasCertificate) -> bool:
        """Whether the same may be done again by a call that shows the same headers."""
        if self.secured:
            certificate = None if grant.shown is None else grant.shown.certificate
            if connection.certificate != certificate:
                return False
        return self.holds(grant)

    def may(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        """Whether somebody may do that, for what is shown and what is left out."""
        return (
            self._authority is None or self._authority.decide(identity, operation, resource).allowed
        )

    def check(
        self, identity: Identity, operation: Operation, resource: Resource, peer: str
    ) -> None:
        """Raises `Forbidden` or `Unauthenticated` if they may not, `AuditTopicClosed` where no
        client may. For what the body names."""
        asked = Decided(identity, operation, resource, True, peer)
        if self.secured:
            if not self.may(identity, operation, resource):
                self._deny(asked)
            self._tell(asked)
        self._check_door(asked)

    def admit_passed_on(
        self, identity: Identity, operation: Operation, resource: Resource, peer: str, call: str
    ) -> None:
        """Ask once more, at a partition's owner, for the caller of another broker.

        The broker that the caller asked has told of what is allowed. Raises as `check` does.
        """
        asked = Decided(identity, operation, resource, True, peer, call=call)
        if self.secured:
            if self._is_over(identity):
                raise Unauthenticated(f"what proved {identity.name} has ended")
            if not self.may(identity, operation, resource):
                self._deny(asked)
            if identity.is_node:
                self._tell(asked)
        self._check_door(asked)

    def may_some(self, identity: Identity, begins: Resource) -> bool:
        """Whether a rule shows somebody something whose name begins so, if it is there."""
        return self._authority is None or self._authority.policy.may_some(
            identity, Operation.DESCRIBE, begins
        )

    # ---- who

    def _unasked(self, route: Route, passed: Passed | None, generation: int) -> Grant:
        if self._required and not route.needs.is_open:
            raise Problem(
                503,
                "not-secured",
                "this broker serves secured clusters only (security.required), and this one is "
                "not: `octavo security secure --admin user:NAME`",
            )
        if passed is not None:
            return Grant(passed.identity, generation)
        if self._free.generation != generation:
            self._free = Grant(ANONYMOUS, generation)
        return self._free

    def _shown(self, request: web.BaseRequest, peer: str) -> Shown | None:
        """What the caller shows; None when that is nothing. Raises `Unauthenticated`."""
        headers = request.headers.getall("Authorization", ())
        if len(headers) > 1:
            raise Unauthenticated("there are several Authorization headers; there may be one")
        connection = request.protocol
        assert isinstance(connection, Connection)
        certificate = connection.certificate
        if not headers and certificate is None:
            return None
        return Shown(headers[0] if headers else None, certificate, peer)

    async def _identify(self, shown: Shown | None, route: Route) -> Identity:
        if shown is None:
            return ANONYMOUS
        if self._authenticator is None:
            raise Unauthenticated("this broker knows no way to check what was shown")
        found = self._authenticator.at_hand(shown)
        if found is not None:
            return found
        try:
            return await self._authenticator.identify(shown)
        except Unauthenticated as error:  # whoever found that has said so in the log
            self._count_denied("unauthenticated")
            if self.on_unauthenticated is not None:
                self.on_unauthenticated(shown.peer, route.name, str(error))
            raise

    def _is_over(self, identity: Identity) -> bool:
        end_s = identity.expires_at_s
        return end_s is not None and self._clock() >= end_s * 1000

    # ---- may they

    def _may(self, identity: Identity, right: Right, found: Mapping[Right, Resource]) -> bool:
        resource = found[right]
        if right.some:
            allowed = self.may_some(identity, resource)
        else:
            allowed = self.may(identity, right.operation, resource)
        if allowed or right.instead is None:
            return allowed
        return self._may(identity, right.instead, found)

    def _check_internal(
        self, identity: Identity, route: Route, variables: Mapping[str, str], peer: str
    ) -> None:
        """Raises `AuditTopicClosed` or `Forbidden` for a call that changes what brokers write."""
        if route.needs.is_inner or variables.get("namespace") not in INTERNAL_NAMESPACES:
            return
        for right in route.needs.rights:
            if not right.some:
                resource = right.resource(variables)
                self._check_door(
                    Decided(identity, right.operation, resource, True, peer, call=route.name)
                )

    def _check_door(self, asked: Decided) -> None:
        door = door_of(asked.operation, asked.resource)
        if door is Door.SHUT:
            self._tell(asked._replace(allowed=False))
            raise shut(asked.resource.name)
        if door is Door.ADMINISTRATORS and not self.may(asked.identity, Operation.ADMIN, CLUSTER):
            self._deny(asked._replace(operation=Operation.ADMIN, resource=CLUSTER))

    def _deny(self, asked: Decided, *, some: bool = False) -> NoReturn:
        """Refuse what was asked for. `some`: anything of that name's beginning would do."""
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
            raise Unauthenticated(f"to {operation} {what} one has to say who one is")
        ask = f"explain {identity.name} {operation} {resource}"
        if some:
            ask = f"list --principal {identity.name}"
        raise Forbidden(f"{identity.name} may not {operation} {what}: `octavo acl {ask}` says why")

    def again(
        self, identity: Identity, operation: Operation, resource: Resource, peer: str, call: str
    ) -> None:
        """The same was done again, by a grant that holds."""
        if self.secured:
            self._tell(Decided(identity, operation, resource, True, peer, call=call))

    def _tell(self, decided: Decided) -> None:
        if self.on_decision is not None and self._authority is not None:
            found = self._authority.decide(decided.identity, decided.operation, decided.resource)
            reason = found.reason if found.allowed == decided.allowed else ""
            self.on_decision(decided._replace(reason=reason))


def _with_instead(rights: Iterable[Right]) -> Iterator[Right]:
    for right in rights:
        yield right
        if right.instead is not None:
            yield from _with_instead((right.instead,))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
