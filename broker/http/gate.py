"""Admit calls: identify the caller and check its rights, before a body is read or work is done.

    the proof is missing or wrong, and one is needed           401, says how to prove it
    the caller is known, and no rule allows the call           403, says who, what and to what
    the cluster is not secured                                 every caller may make every call,
                                                               except calls between brokers
    a broker wants a connection for operations                 403 without a broker's proof

operations/authorizer.py decides what a caller may do, for all protocols. A long call is checked
again: a `Grant` is valid for one generation of the policy, and as long as the caller's proof. A
handler that keeps a call open checks the grant (`holds`) and is woken for that (`Wakes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from octavo.broker.http.connections import Connection
from octavo.broker.http.needs import Right
from octavo.broker.http.problems import Problem
from octavo.broker.internal_topics import INTERNAL_NAMESPACES
from octavo.broker.operations.authorizer import Authorizer
from octavo.security.audit import Decided
from octavo.security.principal import (
    ANONYMOUS,
    Authenticates,
    Identity,
    Shown,
    Unauthenticated,
)
from octavo.security.rules import Resource

if TYPE_CHECKING:
    from aiohttp import web

    from octavo.broker.http.router import Route
    from octavo.security.authority import Authority


OnUnauthenticated = Callable[[str, str, str], None]
"""Called for a wrong proof, with the address, the call and the reason."""
CheckBroker = Callable[[Mapping[str, str]], Identity]
"""Returns the broker that calls with these headers. Raises the refusal of every other caller."""


class HasCertificate(Protocol):
    """A connection that may have a client certificate."""

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate (DER), if it has shown one."""


class Grant(NamedTuple):
    """A call was admitted, and for whom."""

    identity: Identity
    generation: int
    """The generation of the policy that allowed it."""
    shown: Shown | None = None
    """The proof of the identity, if the caller showed it to this broker."""


class Wakes:
    """Wakes all waiting tasks at once."""

    def __init__(self) -> None:
        self._sleepers: dict[asyncio.Future[None], None] = {}  # a dict keeps their order

    def describe(self) -> dict[str, int]:
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


class Gate(Authorizer):
    """Admits or refuses the calls that reach this broker."""

    def __init__(
        self,
        authority: Authority | None,
        authenticator: Authenticates | None,
        clock: Callable[[], int],
        count_denied: Callable[[str], object],
        check_broker: CheckBroker | None = None,
        *,
        required: bool = False,
    ) -> None:
        """Without `authority` every call is allowed. `clock`: milliseconds since 1970. `required`:
        refuse to serve a cluster that is not secured. Without `check_broker` no caller is a broker.
        """
        super().__init__(authority, clock, count_denied)
        self.on_unauthenticated: OnUnauthenticated | None = None
        self.wakes = Wakes()
        self._authenticator = authenticator
        self._required = required
        self._check_broker = check_broker
        self._free = Grant(ANONYMOUS, -1)
        if authority is not None:
            authority.on_change(self.wakes.wake)

    async def admit(
        self,
        request: web.BaseRequest,
        route: Route,
        variables: Mapping[str, str],
    ) -> Grant:
        """Admit a call.

        Raises `Unauthenticated`, `Forbidden`, `InvalidName`, and the refusal of `check_broker` for
        a call that only brokers may make.
        """
        needs, generation = route.needs, self.generation
        peer = request.remote or "unknown"
        if needs.is_inner:
            identity = self._broker_of(request.headers)
            self._check_secured()
            return Grant(identity, generation)
        if not self.secured:
            if not needs.is_open:
                self._check_secured()
            if self._free.generation != generation:
                self._free = Grant(ANONYMOUS, generation)
            self._check_internal(ANONYMOUS, route, variables, peer)
            return self._free
        if needs.is_open:
            return Grant(ANONYMOUS, generation)
        resources = [(right, right.resource(variables)) for right in _with_instead(needs.rights)]
        shown = self._shown(request, peer)
        identity = await self._identify(shown, route)
        self._check_valid(identity)
        found = dict(resources)
        for right in needs.rights:
            asked = Decided(identity, right.operation, found[right], True, peer, call=route.name)
            if not self._may(identity, right, found):
                self._deny(asked, some=right.some)
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
        """Whether `grant` still holds for a call with the same headers on `connection`."""
        if self.secured:
            certificate = None if grant.shown is None else grant.shown.certificate
            if connection.certificate != certificate:
                return False
        return self.holds(grant)

    # The caller

    def _broker_of(self, headers: Mapping[str, str]) -> Identity:
        if self._check_broker is None:
            raise Problem(403, "brokers-only", "this is a call between brokers")
        return self._check_broker(headers)

    def _check_secured(self) -> None:
        """Raise a 503 if this broker may only serve secured clusters, and its cluster is not."""
        if self._required and not self.secured:
            raise Problem(
                503,
                "not-secured",
                "this broker serves secured clusters only (security.required), and this one is "
                "not: `octavo security secure --admin user:NAME`",
            )

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

    # Rights

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

        Raises `AUDIT_TOPIC_CLOSED` or `Forbidden`.
        """
        if variables.get("namespace") not in INTERNAL_NAMESPACES:
            return
        for right in route.needs.rights:
            if not right.some:
                resource = right.resource(variables)
                self._check_door(
                    Decided(identity, right.operation, resource, True, peer, call=route.name)
                )


def _with_instead(rights: Iterable[Right]) -> Iterator[Right]:
    for right in rights:
        yield right
        if right.instead is not None:
            yield from _with_instead((right.instead,))
