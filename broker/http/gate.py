"""Admit calls: identify the caller and check its rights, before a body is read or work is done.

    the proof is missing or wrong, and one is needed           401, says how to prove it
    the caller is known, and no rule allows the call           403, says who, what and to what
    the cluster is not secured                                 every caller may make every call,
                                                               except calls between brokers

No client may write to the topics that brokers write for themselves, whatever the rules say, in an
unsecured cluster as well (internal_topics.py).

A denial has the same words whether the resource exists or not. A call that lasts is checked again:
a `Grant` is valid for one generation of the policy and as long as the caller's proof. A handler
that keeps a call open checks the grant (`holds`) and is woken for that (`Wakes`).

Keeps only counters; a crash loses nothing else.
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
"""Called with each decision."""
OnUnauthenticated = Callable[[str, str, str], None]
"""Called for a wrong proof: from which address, for which call, why."""

log = structlog.get_logger()


class HasCertificate(Protocol):
    """A connection that may have a client certificate."""

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate (DER), if it has shown one."""


class Grant(NamedTuple):
    """Says that a call was admitted, and for whom."""

    identity: Identity
    generation: int
    """The generation of the policy that allowed it."""
    shown: Shown | None = None
    """The proof of the identity, if the caller showed it to this broker."""


class Wakes:
    """Wake all waiting tasks when something has changed for all of them."""

    def __init__(self) -> None:
        self._sleepers: dict[asyncio.Future[None], None] = {}  # a dict keeps their order

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"sleepers": len(self._sleepers)}

    @contextmanager
    def next(self) -> Iterator[asyncio.Future[None]]:
        """Yield a future that is done at the next `wake`."""
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers[sleeper] = None
        try:
            yield sleeper
        finally:
            del self._sleepers[sleeper]

    def wake(self) -> None:
        """Wake all tasks that wait."""
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)


class Gate:
    """Admit or refuse the calls that reach this broker."""

    def __init__(
        self,
        authority: Authority | None,
        authenticator: Authenticates | None,
        clock: Callable[[], int],
        count_denied: Callable[[str], object],
        *,
        required: bool = False,
    ) -> None:
        """Without `authority` every call is allowed. `clock`: milliseconds since 1970. `required`:
        refuse to serve a cluster that is not secured."""
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
        """Whether the cluster is secured, so that rights are checked."""
        return self._authority is not None and self._authority.secured

    @property
    def generation(self) -> int:
        """The generation of the policy; it changes with each change of the policy."""
        return 0 if self._authority is None else self._authority.generation

    async def admit(
        self,
        request: web.BaseRequest,
        route: Route,
        variables: Mapping[str, str],
        passed: Passed | None,
    ) -> Grant:
        """Admit a call. `passed`: the statement of the broker that forwarded it.

        Raises `Unauthenticated`, `Forbidden`, `InvalidName`, and a 403 if a call that only brokers
        may make has no broker's proof.
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
            if passed is None or identity.is_node:  # else the first broker has reported it
                self._tell(asked)
        self._check_internal(identity, route, variables, peer)
        return Grant(identity, generation, shown)

    def holds(self, grant: Grant) -> bool:
        """Whether an admitted call may continue without a new check."""
        if grant.generation != self.generation or self._is_over(grant.identity):
            return False
        if grant.shown is None or self._authenticator is None:
            return True
        return self._authenticator.at_hand(grant.shown) == grant.identity

    def holds_for(self, grant: Grant, connection: HasCertificate) -> bool:
        """Whether a call with the same headers may be made under the same grant."""
        if self.secured:
            certificate = None if grant.shown is None else grant.shown.certificate
            if connection.certificate != certificate:
                return False
        return self.holds(grant)

    def may(self, identity: Identity, operation: Operation, resource: Resource) -> bool:
        """Whether the caller may do that; decides what is shown and what is left out."""
        return (
            self._authority is None or self._authority.decide(identity, operation, resource).allowed
        )

    def check(
        self, identity: Identity, operation: Operation, resource: Resource, peer: str
    ) -> None:
        """Check a right on a resource that the body names.

        Raises `Forbidden` or `Unauthenticated`, and `AuditTopicClosed` where no client may.
        """
        asked = Decided(identity, operation, resource, True, peer)
        if self.secured:
            if not self.may(identity, operation, resource):
                self._deny(asked)
            self._tell(asked)
        self._check_door(asked)

    def admit_passed_on(
        self, identity: Identity, operation: Operation, resource: Resource, peer: str, call: str
    ) -> None:
        """Check the right again, at a partition's owner, for the caller of another broker.

        The first broker has reported the allowed decision. Raises what `check` raises.
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
        """Whether a rule allows the caller to see some resource whose name begins like this."""
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
        """Return the caller's proof; None if there is none. Raises `Unauthenticated`."""
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
        except Unauthenticated as error:  # the authenticator has logged it
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
        """Refuse calls that change the brokers' own topics.

        Raises `AuditTopicClosed` or `Forbidden`.
        """
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
        """Refuse a decision. `some`: a right on any resource with this beginning would do."""
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
        """Report a call that was made again under a grant that holds."""
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
